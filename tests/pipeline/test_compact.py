"""Which parts `compact` merges, for any manifest; and the warehouse that it could not compact."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.jobs import compact, decode
from pipeline.jobs.compact import TARGET_BYTES, _groups
from pipeline.run import Run
from pipeline.schemas import TOPIC_PACKETS
from pipeline.sinks.parquet import Part, part_of

SIZES = st.one_of(
    st.sampled_from((0, 1, TARGET_BYTES // 2 - 1, TARGET_BYTES // 2, TARGET_BYTES, 3 * TARGET_BYTES)),
    st.integers(0, TARGET_BYTES),
)


def parts(*sizes: tuple[str, int]) -> list[Part]:
    return [Part(f"batch={n}", size, size, gateway=gateway) for n, (gateway, size) in enumerate(sizes)]


@given(st.lists(st.tuples(st.sampled_from(("", "a", "b")), SIZES), max_size=40), st.booleans())
@example([("", 0)], False)  # compaction crashed on an empty first part
@example([("a", 5), ("b", 0)], False)  # and took that of another gateway for the first one's
def test_parts_are_grouped_in_their_order(sizes: list[tuple[str, int]], everything: bool) -> None:
    given = parts(*sizes)
    groups = _groups(given, everything=everything)
    assert list(chain.from_iterable(groups)) == given
    for group in groups:
        assert len({part.gateway for part in group}) == 1
        has_large = any(part.bytes >= TARGET_BYTES // 2 for part in group)
        assert len(group) == 1 or sum(part.bytes for part in group) <= TARGET_BYTES
        assert len(group) == 1 or everything or not has_large
    for group, (first, *_) in pairwise(groups):
        together = sum(part.bytes for part in group) + first.bytes
        large = max(first.bytes, group[-1].bytes) >= TARGET_BYTES // 2 and not everything
        assert together > TARGET_BYTES or large or group[0].gateway != first.gateway, "they belong together"


def test_a_table_that_begins_with_an_empty_part_is_compacted(make_run: Callable[..., Run]) -> None:
    """A batch without a message of a protocol, or whose segments were retired, leaves an empty part."""
    run = make_run()
    table = run.table(TOPIC_PACKETS, decode.JOB)
    manifest = table.manifest()
    for n in range(compact.MIN_PARTS):
        staged = table.stage_rows([("g", n, 6, "t", 1, "{}", None)] if n else [])
        manifest.batch += 1
        table.append(staged, part_of(f"{n:012d}", staged), manifest)
    before = sorted(table.frame(run.spark).collect())
    assert compact.run(run) == 1
    assert [part.rows for part in table.manifest().parts] == [compact.MIN_PARTS - 1]
    assert sorted(table.frame(run.spark).collect()) == before
    assert compact.run(run) == 0
