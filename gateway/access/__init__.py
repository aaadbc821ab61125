"""Authentication and authorisation: keys and their rights, web origins, and request limits."""
