"""Webhooks: messages of the log are pushed to URLs, at least once, in order, and signed."""
