"""Where the command `trellis` begins: it imports only what the command needs, if that makes a difference.

All commands together import every adapter, which takes a second. The pipeline's needs none of them.
"""

from __future__ import annotations

import sys

import typer

from gateway.commands.common import run


def main() -> None:
    """Run the command; exit codes are 0 (done), 1 (failed) and 2 (wrong usage)."""
    if sys.argv[1:2] == ["pipeline"]:
        run(_pipeline())
    else:
        from .cli import app

        run(app)


def _pipeline() -> typer.Typer:
    from gateway.commands.pipeline import pipeline

    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # without it the name of the command would be no argument
    app.command()(pipeline)
    return app
