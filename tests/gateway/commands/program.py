"""The program `trellis`, run in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from typer.testing import CliRunner

from gateway.cli import app
from gateway.core.errors import OperatorError

SECONDS = 30
COMMAND = (sys.executable, "-m", "gateway")
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def trellis(*arguments: str, stdin: str = "", **environment: str) -> Done:
    """Run the command in this process, which is quicker; its environment is nothing but what is given."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.startswith("TRELLIS_")}
    result = CliRunner().invoke(app, arguments, input=stdin, env=ours | environment)
    if isinstance(result.exception, OperatorError):
        return Done(arguments, 1, result.stdout, f"{result.stderr}trellis: {result.exception}\n")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Done(arguments, result.exit_code, result.stdout, result.stderr)


def process(*arguments: str, stdin: str = "", **environment: str) -> Done:
    """Run the command as people do."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean(environment),
        check=False,
    )


def clean(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")} | more
