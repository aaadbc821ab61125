"""Sprout connections and what they share: incoming nodes, answers, rights, and announcements."""
