"""OpenTelemetry: spans of messages and requests reach a collector; without it nothing is imported or replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gateway.core.bus import Bus
from gateway.monitoring.tracing import MISSING, Tracing, TracingUnavailable, of
from gateway.settings.settings import TracingSettings, settings_model
from tests.gateway.operated import Operated
from tests.waiting import until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OFF = """
import sys
from adapters import ADAPTERS
from gateway.app import create_app
from gateway.settings.settings import TracingSettings, settings_model
create_app(settings_model(ADAPTERS)(data=sys.argv[1]))
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))])
"""


def test_a_request_its_message_and_the_disk_are_one_trace(operated: Operated) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    httpx.post(f"http://{operated.http}/v1/channels/traced/messages", json=1, headers=headers).raise_for_status()

    def found() -> dict[str, Any]:
        return {span.name: span for span in operated.collector.spans() if span.trace_id.hex() == TRACE}

    until(lambda: len(found()) == 3)
    post, publish, sync = (found()[name] for name in ("POST", "publish", "sync"))
    assert post.parent_span_id.hex() == PARENT
    assert publish.parent_span_id == post.span_id
    assert sync.parent_span_id == publish.span_id
    assert sync.end_time_unix_nano >= publish.end_time_unix_nano, "it ends when the message is on disk"
    told = {each.key: each.value.string_value or each.value.int_value for each in publish.attributes}
    assert (told["messaging.destination.name"], told["trellis.protocol"]) == ("traced", "rest")


def test_messages_of_other_protocols_begin_a_new_trace(operated: Operated) -> None:
    with connect(f"ws://{operated.http}/relay") as ws:
        ws.send('{"type":6,"topic":"rootless","content":"x"}')

    def roots() -> list[Any]:
        return [span for span in operated.collector.spans() if "rootless" in str(span.attributes)]

    until(roots)
    assert [(span.name, span.parent_span_id) for span in roots()] == [("publish", b"")]


def test_disabled_tracing_imports_and_replaces_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OFF, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    settings = settings_model(())(data=tmp_path)
    assert of(settings, "1", "x") is None
    assert "publish_run" not in Bus.__dict__.get("__slots__", ())


def test_a_missing_extra_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = settings_model(())(data=tmp_path, tracing=TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces"))
    with pytest.raises(TracingUnavailable, match=MISSING):
        Tracing(settings, "1", "x")
