"""Streamr on the wire: the frames of each layer, the tables that they are read and written by, checks, and errors."""
