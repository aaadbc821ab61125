"""Connections: what they do with each message, and those that the gateway dials."""
