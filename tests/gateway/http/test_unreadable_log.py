"""`GET /v1/log` ends visibly incomplete if the log cannot be read, without a traceback in the program's log."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from gateway.storage.segments import Segments


@pytest.fixture
def shown(make_local: Callable[..., Any]) -> Any:
    """A gateway whose log anybody may read, with 2 MB in it."""
    here = make_local(auth={"grants": {"anonymous": ["*:*", "admin:*"]}})
    for _ in range(4):
        content = b'"' + b"x" * 500_000 + b'"'
        httpx.post(f"{here.url}/v1/channels/lobby/messages", content=content, timeout=30).raise_for_status()
    return here


@pytest.mark.parametrize("whole", [0, 6])
def test_a_log_that_cannot_be_read_on_ends_the_answer(
    shown: Any, whole: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scan = Segments.scan

    def fails(self: Segments, *where: Any) -> Iterator[Any]:
        yield from islice(scan(self, *where), whole)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Segments, "scan", fails)
    if not whole:
        refused = httpx.get(f"{shown.url}/v1/log", timeout=30)
        assert (refused.status_code, "Too many open files" in refused.text) == (503, True)
    else:
        with caplog.at_level(logging.WARNING), pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{shown.url}/v1/log", timeout=30)
        told = [record for record in caplog.records if "Too many open files" in record.getMessage()]
        assert len(told) == 1
    assert [record for record in caplog.records if record.exc_info] == []
    monkeypatch.undo()
    assert len(httpx.get(f"{shown.url}/v1/log", timeout=30).content) > 2_000_000
