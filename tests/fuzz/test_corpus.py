"""The kept inputs of the fuzzer are replayed without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
MAX_BYTES = 16_000  # of each decoder's inputs


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_kept_input_finds_nothing(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_decoder_has_inputs_and_they_are_small() -> None:
    sizes = {name: sum(path.stat().st_size for path in INPUTS if path.parent.name == name) for name in TARGETS}
    assert sizes.keys() == {path.name for path in CORPUS.iterdir()}
    assert all(0 < size <= MAX_BYTES for size in sizes.values()), sizes
