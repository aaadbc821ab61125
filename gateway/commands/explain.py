"""`trellis explain`: whether a principal may do something, and which rule decides, without a running gateway."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Annotated, Any

import typer

from gateway.access.authorization import KEY_PREFIX, VERBS, Access, AccessDecision
from gateway.access.keyfile import KeyFile, now_ms
from gateway.core.channels import valid_name
from gateway.core.principal import Principal
from gateway.settings.settings import Settings
from gateway.settings.validation import principal_error

from .common import (
    Adapters,
    AsJson,
    CommandError,
    ConfigFile,
    Data,
    load_settings,
    registry,
    say,
    show,
    visible,
)

WHO = "A principal: key:NAME, sprout:anonymous, streamr:0x...; docs/configuration.md lists all kinds."


def explain(
    context: typer.Context,
    who: Annotated[str, typer.Argument(help=WHO)],
    verb: Annotated[str, typer.Argument(help=f"One of {', '.join(VERBS)}.")],
    channel: Annotated[str, typer.Argument(help="The channel's name; '' for a right that concerns no single channel.")],
    as_json: AsJson = False,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Tell whether a principal may do something, and which rule decides.

    The answer is that of a gateway started now: it follows from the configuration, the key file and the rights that
    users gave each other. Exit code 0: allowed, 1: not allowed.

    \b
    Examples:
      trellis explain key:ada publish weather/berlin
      trellis explain sprout:anonymous history lobby
    """
    settings = load_settings(context, config, {"data": data})
    if verb not in VERBS:
        raise typer.BadParameter(f"{verb!r} is not one of {', '.join(VERBS)}", param_hint="VERB")
    if channel and not valid_name(channel):
        raise typer.BadParameter(f"no channel can be called {channel!r}", param_hint="CHANNEL")
    verdict = _decide(registry(context), settings, who, verb, channel)
    text = f"{'yes' if verdict.allowed else 'no'}: {visible(verdict.reason)}"
    show({"allowed": verdict.allowed, "reason": verdict.reason}, as_json, text)
    raise typer.Exit(0 if verdict.allowed else 1)


def _decide(adapters: Adapters, settings: Settings, who: str, verb: str, channel: str) -> AccessDecision:
    file = KeyFile(settings.data / "keys" / "api-keys.json")
    try:
        keys = file.load()
    except ValueError as error:
        raise CommandError(str(error)) from None
    access = Access(keys, settings.auth.grants)
    _give(access, adapters, settings)
    if not who.startswith(KEY_PREFIX):
        if (reason := principal_error(who, adapters)) is not None:
            reason += "" if ":" in who else f"; the key called {who} is {KEY_PREFIX}{who}"
            raise typer.BadParameter(reason, param_hint="WHO")
        return access.explain(Principal(who), verb, channel)
    named = [key for key in keys if KEY_PREFIX + key.name == who]
    if not named:
        raise typer.BadParameter(f"there is no {who!r}; `trellis key list` lists the keys", param_hint="WHO")
    valid = [key for key in named if key.is_valid_at(now_ms())]
    if not valid:
        return AccessDecision(False, f"the key {named[-1].name!r} has expired")
    return access.explain(Principal(who, key=valid[-1].id), verb, channel)


def _give(access: Access, adapters: Adapters, settings: Settings) -> None:
    """Give *access* the rights that users gave each other, from the index."""
    path = settings.data / "index.sqlite"
    try:
        if not path.exists():
            _load_given_rights(access, adapters, settings, lambda _sql, _values=(): [])
            return
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as index:
            _load_given_rights(access, adapters, settings, lambda sql, values=(): index.execute(sql, values).fetchall())
    except sqlite3.Error as error:
        say(f"the index cannot be read ({error}): rights that users gave each other are not considered")


def _load_given_rights(access: Access, adapters: Adapters, settings: Settings, rows: Any) -> None:
    for adapter in adapters:
        if settings.section(adapter).enabled:
            adapter.load_given_rights(settings.section(adapter), access, rows)
