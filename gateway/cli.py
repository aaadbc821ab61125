"""The `trellis` command: `serve`, and what the other modules of `gateway.commands` bring."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from adapters import ADAPTERS
from gateway.commands import backup, clusters, explain, health, keys, log_commands, messaging, tail
from gateway.commands.bench import bench
from gateway.commands.certificates import dev_cert
from gateway.commands.common import ConfigFile, Data, load_settings, registry, run
from gateway.commands.demo import demo
from gateway.commands.links import links
from gateway.commands.pipeline import pipeline
from gateway.commands.status import status
from gateway.commands.sync import sync
from gateway.commands.top import top
from gateway.settings.config import load

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Trellis, a bridge gateway: a message published on one protocol reaches every other.",
    context_settings={"obj": ADAPTERS},  # for `gateway.commands.common.registry`
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. README.md shows how to begin.",
)


def main() -> None:
    """Run the command; exit codes are 0 (done), 1 (failed) and 2 (wrong usage)."""
    run(app)


def print_version(asked: bool) -> None:
    """Print the version and exit, if that is *asked*."""
    if asked:
        typer.echo(f"trellis {version('trellis-gateway')}")
        raise typer.Exit


@app.callback()
def every_command(
    _: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Offer what needs no command."""


@app.command()
def serve(
    context: typer.Context,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(help="For HTTP and WebSocket; 0 takes a free one.  [default: 8080]")
    ] = None,
    sprout_port: Annotated[int | None, typer.Option(help="For Sprout over TCP.  [default: 7777]")] = None,
    sprout_tls_port: Annotated[int | None, typer.Option(help="For Sprout over TLS.  [default: 7778]")] = None,
    data: Data = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate in PEM; with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key in PEM.")] = None,
    loop: Annotated[str | None, typer.Option(help="asyncio or trio.  [default: asyncio]")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.  [default: console]")] = None,
    open_to_all: Annotated[bool, typer.Option("--open-to-all", help="Serve other machines without keys.")] = False,
    adopt: Annotated[bool, typer.Option("--adopt", help="Serve a log that another gateway began, as its own.")] = False,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    \b
    Examples:
      trellis serve
      trellis serve --config /etc/trellis.toml --log-format json
      trellis serve --host 0.0.0.0 --tls-cert certs/cert.pem --tls-key certs/key.pem
    """
    from .service import run as serve_until_stopped

    flags = {"host": host, "port": port, "sprout.port": sprout_port, "sprout.tls_port": sprout_tls_port, "data": data}
    flags |= {"tls_cert": tls_cert, "tls_key": tls_key, "loop": loop, "log_format": log_format}
    flags |= {"open_to_all": open_to_all or None}
    settings = load_settings(context, config, flags)
    serve_until_stopped(settings, partial(load, registry(context), config, flags), adopt=adopt)


for command in (demo, messaging.publish, tail.tail, messaging.direct, messaging.channels, messaging.peers):
    app.command()(command)
app.command()(status)
app.command()(top)
app.command()(links)
app.command()(sync)
app.command()(bench)
app.command()(explain.explain)
app.command()(log_commands.check_config)
app.command()(log_commands.verify)
app.command()(log_commands.export)
app.command("import")(log_commands.import_)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(health.healthcheck)
app.command()(pipeline)
app.command("dev-cert")(dev_cert)
app.add_typer(keys.app, name="key")
app.add_typer(clusters.app, name="cluster")
for adapter in ADAPTERS:
    for name, commands in adapter.commands().items():
        app.add_typer(commands, name=name)
