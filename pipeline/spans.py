"""Sets of sequence numbers as sorted lists of closed spans, `[[first, last], ...]`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = Sequence[int]
Spans = list[list[int]]


def union(*sets: Iterable[Span]) -> Spans:
    """Return the union of *sets*; adjacent spans become one."""
    joined: Spans = []
    for first, last in sorted((span[0], span[1]) for spans in sets for span in spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def minus(spans: Iterable[Span], taken: Iterable[Span]) -> Spans:
    """Return *spans* without *taken*."""
    left: Spans = []
    cuts, at = union(taken), 0
    for low, high in union(spans):
        while at < len(cuts) and cuts[at][1] < low:
            at += 1
        rest, place = low, at
        while place < len(cuts) and cuts[place][0] <= high:
            first, last = cuts[place]
            if rest < first:
                left.append([rest, first - 1])
            rest, place = last + 1, place + 1
        if rest <= high:
            left.append([rest, high])
    return left


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> Spans:
    """Return the intersection of *spans* and *others*."""
    whole = union(spans)
    return minus(whole, minus(whole, others))
