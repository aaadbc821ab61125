"""docs/reference/rest.md: every route, made from the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adapters import ADAPTERS
from gateway.app import create_app
from gateway.settings import config

HEAD = """# REST

{made}
A running gateway describes the same at `/docs` and in `/openapi.json`, with the schema of each body and examples.
[Problems](problems.md) lists every refusal, [Protocols](../protocols.md#rest) says what the messages become elsewhere,
and [Publish from a program](../how-to/publish-from-a-program.md) shows the Python client.

A key is sent as `Authorization: Bearer KEY`. Names in paths are percent-encoded: `weather%2Fberlin`.
"""
TITLES = {"REST": "Channels, messages, peers and keys", "webhooks": "Webhooks", "operations": "For operators"}


def page(made: str) -> str:
    """Return the page; *made* says how it is made."""
    with TemporaryDirectory() as folder:
        paths = create_app(config.load(ADAPTERS, None, {"data": Path(folder)})).openapi()["paths"]
    lines = [HEAD.format(made=made)]
    found = [(path, method, operation) for path, methods in paths.items() for method, operation in methods.items()]
    for tag in dict.fromkeys(operation["tags"][0] for *_, operation in found):
        title = TITLES.get(tag) or f"What applications of {tag.capitalize()} ask for"
        lines += [f"## {title}", "", "| request | does | parameters | answers |", "|---|---|---|---|"]
        lines += [_row(path, method, operation) for path, method, operation in found if operation["tags"][0] == tag]
        lines.append("")
    return "\n".join(lines)


def _row(path: str, method: str, operation: dict[str, Any]) -> str:
    good = ", ".join(sorted(status for status in operation["responses"] if status[0] == "2"))
    query = ", ".join(_parameters(operation))
    return f"| `{method.upper()} {path}` | {_cell(operation['summary'])} | {query} | {good} |"


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    for each in operation.get("parameters", ()):
        if each["in"] != "path":
            yield f"`{each['name']}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").rstrip(".")
