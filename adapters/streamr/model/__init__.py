"""What is known of streams, users, publishers and stored messages, and what the gateway signs for others."""
