"""Sprout connections and what they share: nodes that come in, answers that go out, and who is told what."""
