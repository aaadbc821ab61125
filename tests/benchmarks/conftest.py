"""The load generator is compiled once for all tests of the benchmarks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.generator import build


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for results; it has the load generator."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("bench")
    build(folder)
    return folder
