"""What peers are sent: messages, presence, announced nodes, and answers to their queries."""
