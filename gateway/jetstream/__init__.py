"""A stream on NATS JetStream: bytes that several programs send come to all of them in one order."""
