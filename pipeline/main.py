"""Runs a job once, or repeatedly until it is stopped."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JNetworkError

from .config import FORMAT, FORMAT_FILE, Options
from .errors import PipelineError, SparkEnded, Unreachable
from .interrupts import Interrupts
from .jobs import MIGRATE, SQL, job
from .locks import JobLock
from .migrate import migrate
from .places import put, read
from .run import Run, to_terminal
from .session import start
from .sinks.files import sync, write_json

if TYPE_CHECKING:
    from threading import Event


def execute(name: str, options: Options) -> int:
    """Run the job *name* with *options*, which `preflight` has checked; return the exit code.

    0: done, or stopped by a signal if it was to go on until then; 1: failed; 128 and the number of the signal: stopped
    by it before the job was done.
    """
    try:
        if name == MIGRATE:
            migrate(options.warehouse, to_terminal)
            return 0
        _prepare(options)
        return _with_spark(name, options)
    except PipelineError as error:
        to_terminal(f"trellis: {error}")
        return 1


def _with_spark(name: str, options: Options) -> int:
    interrupts = Interrupts()
    to_terminal(f"{name}: starting Spark on {options.master}")
    number = interrupts.run(partial(_do, name, options), _cancel)
    if number is None:
        return 0
    to_terminal(f"{name}: stopped")
    return 0 if options.follow else 128 + number


def _do(name: str, options: Options, stop: Event) -> None:
    """Start Spark, and run the job *name*."""
    from pyspark.accumulators import AccumulatorTCPServer

    # It would print a traceback if the JVM, which receives most signals as well, closes its connection.
    setattr(AccumulatorTCPServer, "handle_error", lambda *_: None)  # noqa: B010  (a method, for mypy)
    run = Run(start(options), options)
    try:
        if name == SQL:
            job(name)(run)
        else:
            repeat(name, run, stop)
    except (Py4JNetworkError, ConnectionRefusedError):
        raise SparkEnded("Spark's Java process has ended; if it lacked memory, try a larger --heap") from None
    finally:
        with suppress(Py4JError, OSError):  # the JVM may have ended
            run.spark.stop()


def _cancel() -> bool:
    """Cancel what Spark does, without its reports of what failed for that reason; return False if it has not begun."""
    from pyspark import SparkContext

    if (context := SparkContext._active_spark_context) is None:
        return False
    with suppress(Py4JError, OSError, AttributeError):  # the JVM may have ended, and the context not be complete
        context.setLogLevel("OFF")
        context.cancelAllJobs()
    return True


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


def repeat(name: str, run: Run, stop: Event) -> None:
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
    run.say(f"{name}: {'stopped' if run.options.follow else 'done'}")
