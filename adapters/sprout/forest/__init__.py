"""Nodes of the Arbor forest: how they are encoded, signed and checked, and what they say. Nothing here looks any up."""
