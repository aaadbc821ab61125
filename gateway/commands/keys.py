"""`trellis key`: who may use the gateway, kept in its data directory; a running gateway notices within seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.access import lastuse
from gateway.access.auth import DEFAULT_RIGHTS, VERBS, ApiKey, KeyFile, Right
from gateway.access.keyfile import now_ms
from gateway.access.rights import DENY_PREFIX

from .common import CommandError, ConfigFile, Data, data_directory, say, table, visible

UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}  # ms
LONGEST = 36_500  # days
ADMIN = "admin:*"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: add, list, rotate, remove. A running gateway notices within seconds.",
)

Name = Annotated[str, typer.Argument(help="What the key is called; its messages carry that name.")]


@app.command()
def add(
    context: typer.Context,
    name: Name,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERB:PATTERN",
            help=f"A right: a verb of {', '.join(VERBS)} or *, and the channels, such as weather/*. "
            f"Several are possible.  [default: {' '.join(DEFAULT_RIGHTS)}]",
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="VERB:PATTERN", help="What it may not do, whatever else it may. Several are possible."),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may administer every channel too.")] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="It ends after this time: 90m, 12h, 30d.  [default: never]")
    ] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Make a key and print it: the only time it is ever shown.

    With the first key, authentication is on: from then on nobody may do anything without one, except as
    `auth.grants` in the configuration says.
    """
    rights = [*(allow or DEFAULT_RIGHTS), *([ADMIN] if admin else []), *(DENY_PREFIX + right for right in deny or ())]
    for right in rights:
        _check(right)
    ends = None if expires is None else now_ms() + _duration(expires, "--expires")
    file = _key_file(context, config, data)
    try:
        first = not file.load()
        typer.echo(file.add(name, rights, ends))
    except ValueError as error:
        raise CommandError(str(error)) from None
    say("keep it: only its digest is stored" + ("; from now on every request needs a key" if first else ""))


@app.command("list")
def list_(context: typer.Context, data: Data = None, config: ConfigFile = None) -> None:
    """List the keys: their names, ids and rights, when they end, and when they were last used."""
    file = _key_file(context, config, data)
    used = lastuse.read_times(file.path.with_name(lastuse.FILE_NAME))
    rows = [
        (visible(key.name), key.id, _end(key), _moment(used.get(key.id)) or "never", " ".join(key.rights))
        for key in _load(file)
    ]
    typer.echo(table([("NAME", "ID", "EXPIRES", "LAST USED", "RIGHTS"), *rows]))


@app.command()
def rotate(
    context: typer.Context,
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key is still good: 0s, 1h, 7d.")
    ] = "1h",
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Make a new secret for a key, and print it; the old one ends after the overlap, with all its connections."""
    file = _key_file(context, config, data)
    try:
        typer.echo(file.rotate(name, _duration(overlap, "--overlap")))
    except ValueError as error:
        raise CommandError(str(error)) from None
    say(f"keep it: only its digest is stored; the old one ends in {overlap}")


@app.command()
def remove(context: typer.Context, name: Name, data: Data = None, config: ConfigFile = None) -> None:
    """Remove a key; whoever uses it loses its rights, and its connections."""
    file = _key_file(context, config, data)
    _load(file)
    if not file.remove(name):
        raise CommandError(f"there is no key called {name!r} in {file.path}; `trellis key list` shows which there are")
    if not file.load():
        say(
            "that was the last key; a gateway started from now on lets everybody in, or refuses to serve other machines"
        )


def _key_file(context: typer.Context, config: Path | None, data: Path | None) -> KeyFile:
    return KeyFile(data_directory(context, config, data) / "keys" / "api-keys.json")


def _load(file: KeyFile) -> list[ApiKey]:
    try:
        return file.load()
    except ValueError as error:
        raise CommandError(str(error)) from None


def _check(right: str) -> None:
    try:
        Right.parse(right)
    except ValueError as error:
        raise typer.BadParameter(
            str(error), param_hint="--deny" if right.startswith(DENY_PREFIX) else "--allow"
        ) from None


def _duration(text: str, option: str) -> int:
    """The milliseconds that *text*, such as `30d`, says."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None or (ms := int(found[1]) * UNITS[found[2]]) > LONGEST * UNITS["d"]:
        raise typer.BadParameter(f"{text!r} is no time such as 90m, 12h or 30d", param_hint=option)
    return ms


def _end(key: ApiKey) -> str:
    """When *key* ends."""
    end = _moment(key.expires) or "never"
    return end if key.is_valid_at(now_ms()) else f"{end} (over)"


def _moment(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
