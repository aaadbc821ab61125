"""The `trellis` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters import ADAPTERS

from . import config

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Trellis: a bridge gateway.")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="a TOML file")]
Data = Annotated[Path | None, typer.Option("--data", help="where everything is kept")]


def main() -> None:
    """Run the command; exit codes are 0 (done), 1 (failed) and 2 (wrong usage)."""
    app()


def load_settings(file: Path | None, **flags: Any) -> config.Settings:
    """The configuration, or an exit with code 2 and every fault named."""
    try:
        return config.load(ADAPTERS, file, flags)
    except config.BadConfiguration as error:
        for fault in error.faults:
            typer.echo(f"configuration: {fault}", err=True)
        raise typer.Exit(2) from None


@app.command()
def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="the address to listen on  [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(help="for HTTP and WebSocket; 0 takes a free one  [default: 8080]")
    ] = None,
    sprout_port: Annotated[int | None, typer.Option(help="for Sprout over TCP  [default: 7777]")] = None,
    sprout_tls_port: Annotated[int | None, typer.Option(help="for Sprout over TLS  [default: 7778]")] = None,
    data: Data = None,
    tls_cert: Annotated[Path | None, typer.Option(help="a certificate in PEM; with --tls-key")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its key in PEM")] = None,
    loop: Annotated[str | None, typer.Option(help="asyncio or trio  [default: asyncio]")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json  [default: console]")] = None,
    open_to_all: Annotated[bool, typer.Option("--open-to-all", help="serve other machines without keys")] = False,
) -> None:
    """Run the gateway until it is told to stop."""
    from .runtime import InUse
    from .service import CannotStart, run

    flags = {
        "host": host,
        "port": port,
        "sprout.port": sprout_port,
        "sprout.tls_port": sprout_tls_port,
        "data": data,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "loop": loop,
        "log_format": log_format,
        "open_to_all": open_to_all or None,
    }
    settings = load_settings(config, **flags)
    try:
        run(settings)
    except (CannotStart, InUse) as error:
        typer.echo(f"trellis: {error}", err=True)
        sys.exit(1)
