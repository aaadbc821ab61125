"""Sprout on the wire: its messages, how they are read from bytes that may be cut anywhere, and what describes them."""
