"""Messages, channels, peers, the bus that joins them, and the contract of a session; no I/O, no await."""
