"""The nodes that are held: their tables in the index, where they stand in the log, and what of them is in memory."""
