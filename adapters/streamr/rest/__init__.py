"""Streamr's REST interface: logins, streams and permissions, and the data API of the broker."""
