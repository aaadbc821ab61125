"""Who may do what, and how much of it: keys and their rights, web pages that may connect, and limits of rate."""
