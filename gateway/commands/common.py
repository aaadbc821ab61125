"""What several commands share: reading the configuration, failing, and printing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gateway.core.errors import OperatorError

if TYPE_CHECKING:  # half a second of imports, which `pipeline` does without
    from gateway.adapter import Adapter
    from gateway.settings.settings import Settings

Adapters = Sequence["type[Adapter]"]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file (docs/configuration.md).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Data = Annotated[Path | None, typer.Option("--data", help="Where everything is kept.  [default: trellis-data]")]


class CommandError(OperatorError):
    """A command failed with exit code 1; the text says why, and what to do about it."""


def run(app: typer.Typer) -> None:
    """Run the command of *app* that the arguments name; a failure is one line."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # typeshed: TextIO, in fact a wrapper
    try:
        app()
    except OperatorError as error:
        fail(str(error))
    except OSError as error:  # of a file or a folder that a command was given
        fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None))


def fail(reason: str) -> NoReturn:
    """Say why the command failed, and exit with code 1."""
    say(f"{paint('trellis:', typer.colors.RED, bold=True)} {reason}")
    sys.exit(1)


def registry(context: typer.Context) -> Adapters:
    """Return the adapters, which `gateway.cli` passes to every command in its context."""
    adapters: Adapters = context.obj
    return adapters


def load_settings(context: typer.Context, file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Load the configuration; print every fault and raise `typer.Exit` with code 2 if there is one."""
    from gateway.settings import config

    try:
        return config.load(registry(context), file, flags)
    except config.BadConfiguration as error:
        for fault in error.faults:
            say(f"configuration: {fault}")
        raise typer.Exit(2) from None


def data_directory(context: typer.Context, file: Path | None, data: Path | None) -> Path:
    """Return the data directory of the gateway with this configuration."""
    return load_settings(context, file, {"data": data}).data


def say(text: str) -> None:
    """Write *text* for people to standard error, so that standard output has only results."""
    sys.stdout.flush()
    typer.echo(text, err=True)


def show(value: Any, as_json: bool, text: str) -> None:
    """Print *text* for people, or *value* as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False) if as_json else text)


def paint(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Return *text* in a colour, which is printed on a terminal only; unchanged if NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, fg=colour, bold=bold or None, dim=dim or None)  # False would undo the other one


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Align *rows*, of which the first is the heading, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    head, *rest = (line.rstrip() for line in lines)
    return "\n".join([paint(head, bold=True), *rest])


def fields(values: Mapping[str, Any]) -> str:
    """Format *values* one on a line, each after its name."""
    width = max(map(len, values))
    return "\n".join(f"{paint(name.ljust(width), bold=True)}  {cell(value)}" for name, value in values.items())


def cell(value: Any) -> str:
    """Format a JSON value for people."""
    return visible(value if isinstance(value, str) else "-" if value is None else json.dumps(value))


def visible(text: str) -> str:
    """Escape control characters and line breaks in *text*: what a peer sent must not control a terminal."""
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in text)
