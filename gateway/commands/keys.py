"""`trellis key`: who may use the gateway, kept in its data directory; a running gateway notices within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.auth import USUAL, VERBS, KeyFile, Right

from .common import ConfigFile, Data, Failed, data_directory, say, table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: add, list, remove. A running gateway notices within seconds.",
)

Name = Annotated[str, typer.Argument(help="What the key is called; its messages carry that name.")]


@app.command()
def add(
    name: Name,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERB:PATTERN",
            help=f"A right: a verb of {', '.join(VERBS)} or *, and the channels, such as weather/*. "
            f"Several are possible.  [default: {' '.join(USUAL)}]",
        ),
    ] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Make a key and print it: the only time it is ever shown.

    With the first key, authentication is on: from then on nobody may do anything without one, except as
    `auth.grants` in the configuration says.
    """
    for right in allow or ():
        _check(right)
    file = _key_file(config, data)
    first = not file.load()
    try:
        typer.echo(file.add(name, allow or USUAL))
    except ValueError as error:
        raise Failed(str(error)) from None
    say("keep it: only its digest is stored" + ("; from now on every request needs a key" if first else ""))


@app.command("list")
def list_(data: Data = None, config: ConfigFile = None) -> None:
    """List the keys: their names and rights."""
    keys = _key_file(config, data).load()
    typer.echo(table([("NAME", "RIGHTS"), *((key.name, " ".join(key.rights)) for key in keys)]))


@app.command()
def remove(name: Name, data: Data = None, config: ConfigFile = None) -> None:
    """Remove a key; whoever uses it loses its rights."""
    file = _key_file(config, data)
    if not file.remove(name):
        raise Failed(f"there is no key called {name!r} in {file.path}; `trellis key list` shows which there are")
    if not file.load():
        say(
            "that was the last key; a gateway started from now on lets everybody in, or refuses to serve other machines"
        )


def _key_file(config: Path | None, data: Path | None) -> KeyFile:
    return KeyFile(data_directory(config, data) / "keys" / "api-keys.json")


def _check(right: str) -> None:
    try:
        Right.parse(right)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allow") from None
