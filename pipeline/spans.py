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
    left: Spans = union(spans)
    for first, last in union(taken):
        cut: Spans = []
        for low, high in left:
            if last < low or high < first:
                cut.append([low, high])
                continue
            if low < first:
                cut.append([low, first - 1])
            if last < high:
                cut.append([last + 1, high])
        left = cut
    return left


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> Spans:
    """Return the intersection of *spans* and *others*."""
    whole = union(spans)
    return minus(whole, minus(whole, others))
