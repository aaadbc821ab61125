"""What becomes of a message that a client publishes, alone or in a run, and the gateway's part in the key exchange."""
