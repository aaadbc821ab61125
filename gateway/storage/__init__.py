"""What is kept: the log, which is the truth; the index, by which it is found again; and what retention leaves."""
