"""Commands for whoever runs a gateway: look at its configuration, and at what it keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import typer

from .common import ConfigFile, Data, load_settings

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML takes without quotes


def check_config(config: ConfigFile = None, data: Data = None) -> None:
    """Check the configuration, and print it.

    It is read as `serve` would, and printed as TOML. Every fault is named by its key, and the exit code is 2.
    """
    settings = load_settings(config, {"data": data})
    typer.echo("# ok")
    for line in toml_lines(settings.model_dump(mode="json")):
        typer.echo(line)


def toml_lines(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Each value with its dotted key; what is not set is a comment. Secrets are stars by their type (`SecretStr`)."""
    for name, value in values.items():
        key = prefix + (name if _BARE.fullmatch(name) else json.dumps(name))
        if isinstance(value, dict) and value:
            yield from toml_lines(value, f"{key}.")
        elif value is None:
            yield f"# {key} ="
        else:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
