"""Stream partitions, and arrays that are nearly messages of the tracker protocol."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.streamr.sessions.tracker_topology import StreamPart

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
nearly = st.tuples(
    st.sampled_from([1, 2, 3, "2", None]), st.sampled_from([*range(19), "9", "14"]), st.lists(json_values, max_size=6)
)


PARTS = [StreamPart("a", 0), StreamPart("a", 1), StreamPart("b", 0)]
