"""The program's log has levels, limits repeated lines, and contains no secrets or control characters."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys

import httpx
import pytest
import structlog
from websockets.sync.client import connect

from gateway.monitoring import logs
from gateway.monitoring.logs import BURST, LineLimit, cleaned, without_secrets
from tests.gateway.operated import SECONDS, Operated
from tests.still import Clock
from tests.waiting import until

KEY = "trellis_" + "Zm9v" * 10 + "abc"


def test_each_connection_refusal_and_channel_has_a_line_and_none_a_key(operated: Operated) -> None:
    key, http, since = operated.key, operated.http, len(operated.server.log)
    with connect(f"ws://{http}/relay?key={key}") as ws:
        ws.send('{"type":1,"topic":"logged","reqid":1}')
        ws.recv(timeout=SECONDS)
        ws.send('{"type":3,"topic":"elsewhere","reqid":2}')
        ws.recv(timeout=SECONDS)
    until(lambda: operated.lines("connection closed", since))
    (opened,), (closed,) = operated.lines("connection opened", since), operated.lines("connection closed", since)
    assert (opened["protocol"], opened["principal"], opened["network"]) == ("topic_relay", "key:ada", "127.0.0.1")
    assert (closed["peer"], closed["reason"]) == (opened["peer"], "the other side ended it")
    until(lambda: operated.lines("refused", since))
    (told,) = operated.lines("refused", since)
    assert (told["protocol"], told["reason"], told["peer"]) == ("topic_relay", "NotSubscribed", opened["peer"])
    since = len(operated.server.log)
    shown = {"Authorization": f"Bearer {key}"}
    httpx.post(f"http://{http}/v1/channels/logged/messages", json=1, headers=shown).raise_for_status()
    until(lambda: operated.lines("channel made", since))
    assert [line["channel"] for line in operated.lines("channel made", since)] == ["logged"]
    bad = {"Authorization": f"Bearer {KEY}"}
    assert httpx.get(f"http://{http}/v1/channels/{KEY}?key={KEY}", headers=bad).status_code == 401
    until(lambda: operated.lines("refused", since))
    (refused,) = operated.lines("refused", since)
    assert (refused["protocol"], refused["reason"], refused["network"]) == ("rest", "401", "127.0.0.1")
    assert refused["path"] == "/v1/channels/trellis_***"
    operated.keys.write_text("[]")
    until(lambda: operated.lines("the keys were read again", since))
    assert operated.lines("the keys were read again", since)[0]["removed"] == ["ada"]
    assert key not in operated.server.log
    assert KEY not in operated.server.log


def test_libraries_log_json_if_the_gateway_does(operated: Operated) -> None:
    since = len(operated.server.log)
    host, _, port = operated.http.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as line:
        line.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        line.recv(1000)
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.getLogger("a.library").makeRecord(
            "a.library", logging.ERROR, "", 1, "it %s", ("fails",), sys.exc_info()
        )
    told = json.loads(logs._JsonFormatter().format(record))
    assert (told["event"], told["level"], told["logger"]) == ("it fails", "error", "a.library")
    assert told["exception"].endswith("ValueError: why")
    assert all(line.startswith("{") for line in operated.server.log[since:].splitlines())


def test_the_access_log_and_the_level_change_with_a_reload(operated: Operated) -> None:
    url = f"http://{operated.http}/v1/none"
    operated.configure("access_log = false\n")
    since = len(operated.server.log)
    operated.hangup("reloaded")
    httpx.get(url)
    assert not operated.lines("refused", since)
    operated.configure("access_log = true\n")
    operated.hangup("reloaded")
    httpx.get(url)
    until(lambda: operated.lines("refused", since))
    operated.configure('log_level = "error"\n')
    os.kill(operated.server.pid, signal.SIGHUP)
    since = len(operated.server.log)
    operated.configure("log_level = 7\n")
    assert '"info"' not in operated.hangup("the reload is refused").partition("the reload is refused")[2]
    operated.configure("")
    os.kill(operated.server.pid, signal.SIGHUP)
    until(lambda: httpx.get(url) and operated.lines("refused", since))


def test_a_line_that_repeats_is_left_out_and_counted() -> None:
    clock = Clock()
    limit = LineLimit(lambda: clock() / 1000)
    admitted = [limit.admit("broken") for _ in range(int(BURST) + 10)]
    assert admitted == [0] * int(BURST) + [None] * 10
    assert limit.admit("something else") == 0, "other lines are limited by themselves"
    clock.now += 300
    assert limit.admit("broken") == 10
    assert limit.admit("broken") is None
    assert limit.take_overdue() == []
    clock.now += 1_100
    assert limit.take_overdue() == [("broken", 1)]
    assert limit.take_overdue() == []
    assert limit.left_out == 11


def test_a_flood_of_faults_costs_few_lines_and_each_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(logs, "LIMIT", LineLimit(lambda: clock() / 1000))
    before = structlog.get_config()
    try:
        logs.configure("json", "warning")
        logger = structlog.get_logger("test")
        for number in range(1_000):
            logger.error("damaged log", number=number)
        logger.info("not at this level")
        clock.now += 5_000
        assert logs.flush() == 1_000 - BURST
    finally:
        structlog.configure(**before)
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(written) == BURST + 1
    assert written[-1]["event"] == "lines were left out"
    assert (written[-1]["of"], written[-1]["count"]) == ("damaged log", 1_000 - BURST)


@pytest.mark.parametrize(
    "text",
    [
        f"a key {KEY} in a text",
        f"/v1/log?key={KEY}",
        f"GET /relay?x=1&key={KEY}&y=2 HTTP/1.1",
        f"Authorization: Bearer {KEY}",
        "Authorization: Basic dXNlcjpwYXNzd29yZA==",
        "/v1/log?key=something-else-that-was-typed-there",
    ],
)
def test_no_secret_is_left_in_a_line(text: str) -> None:
    shown = without_secrets(text)
    assert "***" in shown
    for secret in (KEY, "dXNlcjpwYXNzd29yZA", "something-else"):
        assert secret not in shown


def test_control_characters_of_peers_are_escaped() -> None:
    assert cleaned("a\x1b[2Jb\u202ec\nd") == "a\\x1b[2Jb\\u202ec\\nd"
    assert len(cleaned("x" * 10_000)) < 1_000
