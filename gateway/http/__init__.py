"""The REST interface: its routes, their handlers, and what requests and responses have in common."""
