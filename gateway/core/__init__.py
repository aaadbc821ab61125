"""What is said and who hears it: messages, channels, peers, the bus, the contract of a session; no I/O, no await."""
