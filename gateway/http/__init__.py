"""The REST interface: its routes, the handler of each, and what their requests and answers have in common."""
