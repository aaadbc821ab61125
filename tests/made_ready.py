"""Importing this prepares a process from which gateways are forked: what each would do alike is done once.

That is most of the start of a gateway: FastAPI's analysis of the routes, the command's options, the model of the
settings, the pages that it reads and compresses. A process that only runs tests does not import this.
"""

from __future__ import annotations

import gc
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401  # imported when a loop begins
import typer.main

from adapters import ADAPTERS
from gateway.app import create_app
from gateway.cli import app
from gateway.settings.settings import PREFIX, settings_model
from tests import analysed_routes


def _make_ready() -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:  # a gateway is told its own
        del os.environ[name]
    analysed_routes.share()
    main: Any = typer.main
    main.get_command = cache(main.get_command)
    main.get_command(app)
    with tempfile.TemporaryDirectory() as folder:
        gateway = create_app(settings_model(ADAPTERS)(data=Path(folder))).state.gateway
        os.close(gateway._lock)
    gc.collect()
    gc.freeze()  # a gateway collects garbage before it is ready


_make_ready()
