"""`trellis key`: manages API keys in the data directory; a running gateway reads changes within seconds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.access import lastuse
from gateway.access.authorization import DEFAULT_RIGHTS, VERBS, ApiKey, KeyFile, Right
from gateway.access.keyfile import now_ms
from gateway.access.right_patterns import DENY_PREFIX
from gateway.core.durations import milliseconds_of

from .common import AsJson, CommandError, ConfigFile, Data, data_directory, say, show, table, visible

MAX_LIFETIME_MS = 36_500 * 86_400_000
ADMIN = "admin:*"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: add, list, rotate, remove. A running gateway reads changes within seconds.",
)

Name = Annotated[str, typer.Argument(help="The name of the key, and of the sender of its messages.")]


@app.command()
def add(
    context: typer.Context,
    name: Name,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERB:PATTERN",
            help=f"A right: one of {', '.join(VERBS)} or *, and the channels, such as weather/*. "
            f"Can be repeated.  [default: {' '.join(DEFAULT_RIGHTS)}]",
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="VERB:PATTERN", help="A right that it never has, even with --allow. Can be repeated."),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Also allow it to administer every channel.")] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Let it expire after this time: 90m, 12h, 30d.  [default: never]")
    ] = None,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Create a key and print it: the only time it is ever shown.

    The first key switches authentication on: from then on every request needs a key or a grant (`auth.grants`).

    \b
    Examples:
      trellis key add ada
      trellis key add sensor --allow 'publish:weather/*' --expires 30d
    """
    rights = _rights(allow or DEFAULT_RIGHTS, deny or (), admin)
    ends = None if expires is None else now_ms() + _duration(expires, "--expires")
    file = _key_file(context, config, data)
    try:
        first = not file.load()
        typer.echo(file.add(name, rights, ends))
    except ValueError as error:
        raise CommandError(str(error)) from None
    say("keep it: only its digest is stored" + ("; from now on every request needs a key" if first else ""))


@app.command("list")
def list_(context: typer.Context, as_json: AsJson = False, data: Data = None, config: ConfigFile = None) -> None:
    """List the keys: their names, ids and rights, when they expire, and when they were last used.

    \b
    Example:
      trellis key list
    """
    file = _key_file(context, config, data)
    used = lastuse.read_times(file.path.with_name(lastuse.FILE_NAME))
    keys = _load(file)
    rows = [
        (visible(key.name), key.id, _end(key), _moment(used.get(key.id)) or "never", " ".join(key.rights))
        for key in keys
    ]
    found = [
        {"name": k.name, "id": k.id, "expires": k.expires, "lastUsed": used.get(k.id), "rights": [*k.rights]}
        for k in keys
    ]
    show(found, as_json, table([("NAME", "ID", "EXPIRES", "LAST USED", "RIGHTS"), *rows]))


@app.command()
def rotate(
    context: typer.Context,
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key remains valid: 0s, 1h, 7d.")
    ] = "1h",
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Create a new secret for a key, and print it; the old one expires after the overlap, and its connections end.

    \b
    Example:
      trellis key rotate ada --overlap 7d
    """
    file = _key_file(context, config, data)
    try:
        typer.echo(file.rotate(name, _duration(overlap, "--overlap")))
    except ValueError as error:
        raise CommandError(str(error)) from None
    say(f"keep it: only its digest is stored; the old one expires in {overlap}")


@app.command()
def remove(context: typer.Context, name: Name, data: Data = None, config: ConfigFile = None) -> None:
    """Remove a key; connections that use it lose its rights, and end.

    \b
    Example:
      trellis key remove ada
    """
    file = _key_file(context, config, data)
    _load(file)
    if not file.remove(name):
        raise CommandError(f"there is no key called {name!r} in {file.path}; `trellis key list` lists the keys")
    if not file.load():
        say(
            "that was the last key; without keys a gateway lets everybody in at its next start, or refuses to serve "
            "other machines"
        )


def _key_file(context: typer.Context, config: Path | None, data: Path | None) -> KeyFile:
    return KeyFile(data_directory(context, config, data) / "keys" / "api-keys.json")


def _load(file: KeyFile) -> list[ApiKey]:
    try:
        return file.load()
    except ValueError as error:
        raise CommandError(str(error)) from None


def _rights(allow: Iterable[str], deny: Iterable[str], admin: bool) -> list[str]:
    """Return all rules of a key; raise `typer.BadParameter` if one of them is not a rule."""
    rights = [*allow, *([ADMIN] if admin else []), *(DENY_PREFIX + right for right in deny)]
    for right in rights:
        _check(right)
    return rights


def _check(right: str) -> None:
    try:
        Right.parse(right)
    except ValueError as error:
        raise typer.BadParameter(
            str(error), param_hint="--deny" if right.startswith(DENY_PREFIX) else "--allow"
        ) from None


def _duration(text: str, option: str) -> int:
    """Parse a duration such as `30d`; return milliseconds."""
    try:
        ms = milliseconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if ms > MAX_LIFETIME_MS:
        raise typer.BadParameter(f"{text!r} is more than 100 years", param_hint=option)
    return ms


def _end(key: ApiKey) -> str:
    """Return when *key* expires, for people."""
    end = _moment(key.expires) or "never"
    return end if key.is_valid_at(now_ms()) else f"{end} (expired)"


def _moment(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
