"""The commands of Sprout in `trellis`: Arbor identities, and the communities of channels."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters.sprout.forest import openpgp
from adapters.sprout.forest.forest import NodeError, decode, node_id, sign_identity
from adapters.sprout.forest.node_rules import validate
from adapters.sprout.mint.keyfile import KEY_FILE, read_key
from gateway.access.authorization import read_secret, write_secret
from gateway.commands.common import AsJson, CommandError, ConfigFile, Data, data_directory, fields, say, show
from gateway.commands.remote import DEFAULT_URL, Key, Remote, Url

PATIENCE = 10.0  # seconds that a gateway may take to sign a community

identity = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Arbor identities, which sign nodes.")
community = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Arbor communities, which are channels.")

Channel = Annotated[str, typer.Argument(help="The channel.")]


@identity.command("show")
def show_identity(
    context: typer.Context, as_json: AsJson = False, data: Data = None, config: ConfigFile = None
) -> None:
    """Show the gateway's own id and its identity in Arbor.

    \b
    Example:
      trellis identity show
    """
    keys = data_directory(context, config, data) / "keys"
    key = read_key(keys / KEY_FILE)
    gateway = None if key is None else json.loads(read_secret(keys / "gateway.json"))["id"]
    if key is None:
        raise CommandError(f"no gateway has run with {keys.parent} yet; `trellis serve` makes its identity")
    name = f"Trellis {gateway}"
    id = node_id(sign_identity(name, key, key.created * 1000))
    found = {"gateway": gateway, "name": name, "identity": id, "fingerprint": key.fingerprint.hex()}
    show(found, as_json, fields(found))


@identity.command("new")
def new_identity(
    name: Annotated[str, typer.Argument(help="The name of the identity.")],
    folder: Annotated[Path, typer.Option(help="The folder for its files.")] = Path(),
) -> None:
    """Create an identity for an Arbor client.

    Writes two files: NAME.privkey, the OpenPGP key that signs (without a passphrase, mode 0600), and the identity
    node, in a file named after its id, as in a grove. Prints the id.

    \b
    Example:
      trellis identity new ada --folder keys
    """
    if not name or "/" in name:
        raise typer.BadParameter("a name of at least one character, and without /", param_hint="NAME")
    now = int(time.time() * 1000)
    key = openpgp.SecretKey.generate(now // 1000)
    node = _signed(name, key, now)
    path = folder / f"{name}.privkey"
    try:
        if path.exists():
            raise CommandError(f"{path} exists already; choose another name or --folder")
        write_secret(path, key.file)
        (folder / node_id(node)).write_bytes(node)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}; choose another name or --folder") from None
    typer.echo(node_id(node))
    say(f"its key is in {path}; anyone who has that file can sign as {name}")


def _signed(name: str, key: openpgp.SecretKey, now: int) -> bytes:
    """A new identity; `typer.BadParameter` if other relays would refuse it."""
    try:
        node = sign_identity(name, key, now)
        verdict = validate(decode(node), node, now, None, None)
    except NodeError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    if not verdict.ok:
        raise typer.BadParameter(verdict.reason, param_hint="NAME")
    return node


@community.command("show")
def show_community(channel: Channel, as_json: AsJson = False, gateway: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show the community of a channel.

    \b
    Example:
      trellis community show lobby
    """
    with Remote(gateway, key) as remote:
        found = remote.call(remote.client.channel, channel).raw
    if found.get("community") is None:
        raise CommandError(
            f"{channel!r} has no community yet; `trellis community new` creates it, and so does its first message"
        )
    _show(found, as_json)


@community.command("new")
def new_community(channel: Channel, as_json: AsJson = False, gateway: Url = DEFAULT_URL, key: Key = None) -> None:
    """Create a channel and its community.

    \b
    Example:
      trellis community new lobby
    """
    with Remote(gateway, key) as remote:
        found = remote.call(remote.client.create, channel).raw
        deadline = time.monotonic() + PATIENCE
        while found.get("community") is None and time.monotonic() < deadline:
            time.sleep(0.05)
            found = remote.call(remote.client.channel, channel).raw
    if found.get("community") is None:
        raise CommandError(f"the channel exists, but has no community after {PATIENCE:.0f} s; is Sprout enabled?")
    _show(found, as_json)


def _show(channel: Mapping[str, Any], as_json: bool) -> None:
    found = {"channel": channel["name"], "community": channel["community"]}
    show(found, as_json, fields(found))
