"""What several commands have in common: the configuration they read, and how they fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway import config
from gateway.adapter import Adapter
from gateway.settings import Settings

Adapters = Sequence[type[Adapter]]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file (docs/configuration.md).")]
Data = Annotated[Path | None, typer.Option("--data", help="Where everything is kept.  [default: trellis-data]")]


class CommandError(Exception):
    """A command failed: the text says why and what to do about it, and the exit code is 1."""


def registry(context: typer.Context) -> Adapters:
    """The adapters, which `gateway.cli` hands to every command in its context."""
    adapters: Adapters = context.obj
    return adapters


def load_settings(context: typer.Context, file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """The configuration, or an exit with code 2 and every fault named."""
    try:
        return config.load(registry(context), file, flags)
    except config.BadConfiguration as error:
        for fault in error.faults:
            say(f"configuration: {fault}")
        raise typer.Exit(2) from None


def data_directory(context: typer.Context, file: Path | None, data: Path | None) -> Path:
    """The data directory that the gateway with this configuration has."""
    return load_settings(context, file, {"data": data}).data


def say(text: str) -> None:
    """Write *text* for people to standard error, so that standard output has results alone."""
    sys.stdout.flush()
    typer.echo(text, err=True)


def table(rows: list[tuple[str, ...]]) -> str:
    """*rows*, the first of them the heading, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def fields(values: Mapping[str, Any]) -> str:
    """*values* below each other, by their names."""
    width = max(map(len, values))
    return "\n".join(f"{name.ljust(width)}  {cell(value)}" for name, value in values.items())


def cell(value: Any) -> str:
    """A JSON value as people read it."""
    return visible(value if isinstance(value, str) else "-" if value is None else json.dumps(value))


def visible(text: str) -> str:
    """*text* on one line, with control characters written out: what a peer sent must not steer a terminal."""
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in text)
