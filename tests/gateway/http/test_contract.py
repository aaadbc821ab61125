"""A running gateway keeps the promises of /openapi.json under requests that schemathesis generates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Err
from schemathesis.generation import GenerationMode

from tests.server import Server

load_all_checks()
NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
PROMISES: list[Any] = CHECKS.get_by_names(NAMES)
EXAMPLES = 6  # requests of each operation that fit it, and as many that do not; they take half a minute
# They have no end to wait for; tests/gateway/http/test_events.py and test_feed.py are about them.
ENDLESS = ("/v1/channels/{channel}/events", "/v1/events")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("contract")) as server:
        httpx.put(f"http://{server.http}/v1/channels/lobby").raise_for_status()
        yield server


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_rest_conforms_to_its_openapi_document(server: Server, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"http://{server.http}/openapi.json")
    asked = []
    for found in schema.get_all_operations():
        assert not isinstance(found, Err), found
        operation = found.ok()
        if operation.path.startswith("/api/") or operation.path in ENDLESS:
            continue

        @seed(14)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate(checks=PROMISES, timeout=20)

        try:
            ask()
        except Unsatisfiable:  # there is nothing in it that could be wrong
            assert mode is GenerationMode.NEGATIVE, operation.label
        else:
            asked.append(operation.path)
    assert "/v1/channels/{channel}/messages" in asked
    assert "Traceback" not in server.log
