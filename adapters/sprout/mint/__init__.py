"""The nodes that the gateway makes and signs: for itself, for channels, and for messages of other protocols."""
