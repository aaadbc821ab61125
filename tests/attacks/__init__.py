"""Attacks on a running gateway, and what they cost its honest peers. `python -m tests.attacks` prints the table."""
