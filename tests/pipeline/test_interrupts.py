"""Jobs end soon, with one line and a clear exit code, when they are told to stop."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from pipeline import main
from pipeline.config import Options
from pipeline.interrupts import SIGNALS
from pipeline.run import Run
from tests.pipeline.generate import MIXED, write
from tests.pipeline.test_processes import PATIENCE, trellis

Execute = Callable[[Callable[[Run], int]], int]
PROGRAM = """
import sys, time
from pipeline.interrupts import Interrupts
def work(stop):
    print("begun", flush=True)
    {wait}
def cancel():
    print("cancelled", flush=True)
    return {cancels}
print(Interrupts().run(work, cancel), flush=True)
"""


WAIT = "time.sleep(600)"


def program(wait: str, *, cancels: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(wait=wait, cancels=cancels)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stderr is not None
    lines = []
    while words not in (line := process.stderr.readline()):
        lines.append(line)
        assert line, lines


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    ("words", "number"), [(b"ingest: batch 1: ", signal.SIGINT), (b"starting Spark", signal.SIGTERM)]
)
def test_a_signal_to_all_programs_of_a_job_ends_it_with_one_line(
    tmp_path: Path, words: bytes, number: signal.Signals
) -> None:
    """Ctrl-C, and the stop of a service, reach the JVM and its workers as well, in the middle of what they do."""
    write(tmp_path / "log", MIXED, each=60)
    given = ["--source", f"log:{tmp_path}/log", "--warehouse", f"{tmp_path}/tables", "--master", "local[2]"]
    process = trellis("all", *given, "--heap", "512", "--follow")
    until(process, words)
    time.sleep(random.random() * 2)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=PATIENCE)
    usual = (b"NOTE: Picked up JDK_JAVA_OPTIONS", b"ingest: batch ", b"decode: batch ")
    assert [line for line in errors.splitlines() if not line.startswith(usual)] == [b"all: stopped"]
    assert process.returncode == 0


@pytest.fixture
def execute(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Execute]:
    """Execute a job on the Spark of these tests, and return its exit code."""
    monkeypatch.setattr(main, "start", lambda _options: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def execute(work: Callable[[Run], int]) -> int:
        monkeypatch.setattr(main, "job", lambda _name: work)
        return main.execute("gaps", Options(tmp_path))

    yield execute
    spark.sparkContext.setLogLevel("ERROR")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_job_that_is_stopped_before_it_is_done_fails(execute: Execute, capsys: pytest.CaptureFixture[str]) -> None:
    """What Spark does for it is cancelled."""
    raised = []

    def work(run: Run) -> int:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            run.spark.sparkContext.parallelize([600.0], 1).foreach(time.sleep)
        except Py4JJavaError as error:
            raised.append(str(error.java_exception))
            raise
        return 1

    assert execute(work) == 128 + signal.SIGTERM
    assert ["cancelled" in text for text in raised] == [True]
    assert capsys.readouterr().err == "gaps: starting Spark on local[*]\ngaps: stopped\n"


@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JNetworkError()])
def test_the_end_of_java_is_one_line(execute: Execute, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    """Its client raises either."""

    def work(_run: Run) -> int:
        raise error

    assert execute(work) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "trellis: Spark's Java process has ended; if it lacked memory, try a larger --heap"
    ]


def test_work_that_cannot_be_cancelled_is_left_behind() -> None:
    out = signalled(program(WAIT), signal.SIGINT)
    assert out[-1] == str(signal.SIGINT.value)
    assert len(out) > 2
    assert {*out[:-1]} == {"cancelled"}


def test_work_that_has_nothing_to_cancel_is_left_behind_at_once() -> None:
    """As Spark while it starts."""
    assert signalled(program(WAIT, cancels=False), signal.SIGTERM) == ["cancelled", str(signal.SIGTERM.value)]


def test_work_that_waits_for_the_signal_is_done() -> None:
    assert signalled(program("stop.wait(600)"), signal.SIGTERM)[-1] == "None"


def signalled(process: subprocess.Popen[str], number: signal.Signals) -> list[str]:
    """What *process* prints after the signal *number*, which ends its work."""
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == ("", 0)
    return out.splitlines()


def test_a_second_signal_ends_the_process_at_once() -> None:
    process = program(WAIT)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cancelled\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_without_a_signal_the_work_is_waited_for_and_its_exception_raised() -> None:
    out, errors = program("pass").communicate(timeout=60)
    assert (out, errors) == ("begun\nNone\n", "")
    out, errors = program("raise KeyError('x')").communicate(timeout=60)
    assert (out, errors.splitlines()[-1]) == ("begun\n", "KeyError: 'x'")
