"""Nodes of the Arbor forest: how they are encoded, signed, checked and read. Nothing here looks nodes up."""
