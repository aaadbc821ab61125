"""Core, storage, access, shells, REST, commands, and what puts them together. Protocols are in `adapters`."""
