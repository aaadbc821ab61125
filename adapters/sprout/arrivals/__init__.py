"""The announces of one connection: what waits for other nodes, what came together, and the answers."""
