"""Only the gateway's own user can read its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from gateway.storage.importing import import_log


@pytest.fixture
def lax() -> Iterator[None]:
    """A process whose new files everybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(data: Path) -> list[Path]:
    """What in the data directory others than its owner may do anything with."""
    return [path for path in (data, *data.rglob("*")) if S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.usefixtures("lax")
def test_only_the_owner_can_read_stored_files(make_still: Callable[..., Any], tmp_path: Path) -> None:
    still = make_still()
    still.say()
    still.sync()
    assert open_to_others(tmp_path / "data") == []
    still.gateway.log.close()  # seals the segment
    assert open_to_others(tmp_path / "data") == []
    (sealed,) = (tmp_path / "data" / "log").iterdir()
    import_log(sealed.read_bytes().splitlines(keepends=True), tmp_path / "new", 1 << 47)
    assert open_to_others(tmp_path / "new" / "log") == []


@pytest.mark.usefixtures("lax")
def test_a_start_removes_permissions_of_other_users(make_still: Callable[..., Any], tmp_path: Path) -> None:
    still = make_still()
    still.say()
    still.sync()
    data = tmp_path / "data"
    for path in (data, *data.rglob("*")):
        if path.parent.name != "keys":  # those are refused instead
            path.chmod(0o777 if path.is_dir() else 0o666)
    assert open_to_others(data)
    again = make_still()
    assert [path.name for path in open_to_others(data) if path.name != ".lock"] == []
    assert again.gateway.index.history("lobby")
