"""The log, which is the truth; the index, by which messages are found again; and retention."""
