"""Announced nodes: checked, and stored or published."""
