"""The OpenAPI document is complete and true, and its pages need nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from adapters import ADAPTERS
from gateway.app import create_app
from gateway.http import reference_pages, schemas
from gateway.settings import config


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: Any = create_app(config.load(ADAPTERS, None, {"data": tmp_path_factory.mktemp("openapi")})).openapi()
    return made


def operations(document: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def validate(document: Any, name: str, value: Any) -> None:
    jsonschema_rs.validate(schemas.ref(name) | {"components": document["components"]}, value)


def test_every_response_has_a_schema_and_every_operation_its_security(document: Any) -> None:
    for label, operation in operations(document):
        assert isinstance(operation["security"], list), label
        assert all(name in document["components"]["securitySchemes"] for each in operation["security"] for name in each)
        for status, response in operation["responses"].items():
            for content in response.get("content", {}).values():
                assert content["schema"], (label, status)
            if " /v1/" in label and status[0] == "2" and status != "204":
                (schema, *_) = [content["schema"] for content in response["content"].values()]
                assert "$ref" in schema or schema["type"] == "string", (label, "a schema of its own")
        if " /api/" not in label:
            assert operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"]
    events = document["paths"]["/v1/channels/{channel}/events"]["get"]
    assert {"keyInQuery": []} in events["security"]
    assert document["paths"]["/healthz"]["get"]["security"] == []


def test_every_reference_leads_somewhere_and_every_example_is_valid(document: Any) -> None:
    components = document["components"]["schemas"]
    used = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert used <= set(components)
    assert set(schemas.SCHEMAS) <= used, "each is used"
    for name, example in schemas.EXAMPLES.items():
        validate(document, name, example)


def test_the_body_of_webhooks_is_described(document: Any) -> None:
    described = document["webhooks"]["message"]["post"]
    assert described["requestBody"]["content"]["application/json"]["schema"] == schemas.ref("Message")


def test_answers_to_administrators_match_their_schema(make_local: Callable[..., Any], document: Any) -> None:
    """The requests that schemathesis makes have no right to it."""
    admin = {"grants": {"anonymous": ["*:*", "admin:*"]}}
    with httpx.Client(base_url=make_local(auth=admin).url, timeout=20) as client:
        hook = {"url": "https://localhost:1/", "channels": "news/*"}  # nothing there, and not public
        made = client.post("/v1/webhooks", json=hook).json()
        path = f"/v1/webhooks/{made['id']}"
        for name, told in [
            ("NewWebhook", made),
            ("Webhook", client.get(path).json()),
            ("Webhook", client.patch(path, json={"enabled": False}).json()),
            ("WebhookList", client.get("/v1/webhooks").json()),
            ("WebhookSecret", client.post(f"{path}/secret").json()),
            ("DeadLetterPage", client.get(f"{path}/dead-letters").json()),
            ("Problem", client.post(f"{path}/dead-letters/1/retry").json()),
        ]:
            validate(document, name, told)


@pytest.mark.parametrize("path", list(reference_pages.PAGES))
def test_the_pages_load_everything_from_the_gateway(local: Any, path: str) -> None:
    page = httpx.get(local.url + path)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert "//" not in page.text, "nothing from elsewhere, and no script in the page"
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) >= 3
    for asset in loaded:
        found = httpx.get(local.url + asset)
        assert found.status_code == 200, asset
        assert len(found.content) > 50
        assert found.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css", "image/png")
    assert httpx.get(f"{local.url}/docs/assets/other.js").json()["code"] == "not-found"


def test_the_assets_are_the_packages() -> None:
    folder = reference_pages._folder()
    assert {name for name in reference_pages.ASSETS if not Path(folder / name).is_file()} == set()


def test_the_most_frequent_requests_are_matched_first(tmp_path: Path) -> None:
    """Routes are tried in order; before the order was this one, 48 were tried in vain."""
    routes: list[Any] = create_app(config.load(ADAPTERS, None, {"data": tmp_path})).routes[:2]
    assert [(route.methods, route.path) for route in routes] == [
        ({method}, "/v1/channels/{channel}/messages") for method in ("POST", "GET")
    ]
