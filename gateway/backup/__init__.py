"""Backups: one file with everything that a gateway keeps, and a data directory made from it again."""
