"""Signatures and encryption of stream messages: keys, the ciphers, and the exchange of group keys."""
