"""Runs a job once, or repeatedly until it is stopped."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

from .config import FORMAT, FORMAT_FILE, Options
from .errors import PipelineError, Unreachable
from .jobs import MIGRATE, SQL, job
from .locks import JobLock
from .migrate import migrate
from .places import put, read
from .run import Run, to_terminal
from .session import start
from .sinks.files import sync, write_json


def execute(name: str, options: Options) -> int:
    """Run the job *name* with *options*, which `preflight` has checked; return the exit code: 0 done, 1 failed."""
    if name == MIGRATE:
        return _migrate(options.warehouse)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _prepare(options)
        to_terminal(f"{name}: starting Spark on {options.master}")
        run = Run(start(options), options)
        try:
            if name == SQL:
                job(name)(run)
            else:
                repeat(name, run, stop)
        finally:
            run.spark.stop()
    except PipelineError as error:
        to_terminal(f"trellis: {error}")
        return 1
    except Exception as error:
        if not stop.is_set():
            raise
        to_terminal(f"{name}: stopped ({type(error).__name__})")  # Ctrl-C reaches the JVM as well
    return 0


def _migrate(warehouse: Path) -> int:
    try:
        migrate(warehouse, to_terminal)
    except PipelineError as error:
        to_terminal(f"trellis: {error}")
        return 1
    return 0


def _prepare(options: Options) -> None:
    """Create the warehouse and note its format."""
    note, warehouse = {"format": FORMAT}, options.warehouse
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
        if options.objects is not None:
            if read(options.objects / FORMAT_FILE) is None:
                put(options.objects / FORMAT_FILE, json.dumps(note).encode())
        elif not (warehouse / FORMAT_FILE).exists():
            write_json(warehouse / FORMAT_FILE, note)
            sync(warehouse.parent)
    except OSError as error:
        raise PipelineError(f"{options.tables} cannot be written: {error.strerror or error}") from None


def repeat(name: str, run: Run, stop: threading.Event) -> None:
    """Run the job *name* once or, with the option *follow*, until *stop* is set; a gateway may then be away."""
    do, last_trouble = job(name), ""
    with JobLock(run.options.warehouse, f"run-{name}", patience_seconds=0):
        if not run.options.follow:
            do(run)
        while run.options.follow and not stop.is_set():
            try:
                done, trouble = do(run), ""
            except Unreachable as error:
                done, trouble = 0, f"{error}"
            if trouble != last_trouble:
                run.say(f"{name}: {trouble}; it is tried again" if trouble else f"{name}: goes on")
                last_trouble = trouble
            if not done:
                stop.wait(run.options.interval_seconds)
    run.say(f"{name}: done")
