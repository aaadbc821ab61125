"""The tracker chooses the neighbours of each node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.streamr.sessions.tracker_topology import NEIGHBOURS, Ring, StreamPart, Topology
from tests.adapters.streamr.wire.tracker_messages import PARTS


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from(PARTS))), max_size=40))
def test_the_last_instruction_of_each_node_matches_the_topology(reports: list[tuple[int, set[StreamPart]]]) -> None:
    topology: Topology[int] = Topology()
    having: dict[int, dict[StreamPart, None]] = {}
    known: dict[tuple[int, StreamPart], list[int]] = {}
    for node, parts in reports:
        having[node] = dict.fromkeys(sorted(parts))
        changed = [(each, part) for part, nodes in topology.report(node, having[node]) for each in nodes]
        assert len(changed) <= NEIGHBOURS * len(PARTS)
        known |= {(each, part): topology.neighbours(each, part) for each, part in changed}
        known |= {(node, part): topology.neighbours(node, part) for part in having[node]}
        known = {(each, part): others for (each, part), others in known.items() if part in having[each]}
    assert {each: topology.parts(each) for each in having} == having
    for (node, part), others in known.items():
        assert node not in others
        assert len(others) <= NEIGHBOURS
        assert all(node in known[other, part] for other in others), "who is a neighbour has one"
        there = {each for each, parts in having.items() if part in parts}
        assert set(others) <= there
        assert len(others) == min(len(there) - 1, NEIGHBOURS)


def test_every_node_is_reachable_from_every_other() -> None:
    ring: Ring[int] = Ring()
    for number in range(50):
        ring.add(number)
    reached, frontier = {0}, [0]
    while frontier:
        frontier = [other for node in frontier for other in ring.neighbours(node) if other not in reached]
        reached.update(frontier)
    assert reached == set(range(50))
