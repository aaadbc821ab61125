"""The servers that speak Sprout: this gateway, and a relay on the Go library."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .servers import Unavailable, _last_words, _program, _running
from .sprout_forest import plant

RELAY = Path(__file__).parent / "sprout_relay"
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """A server that is up."""

    name: str
    pid: int
    sprout: str
    http: str = ""


@contextmanager
def trellis(work: Path, name: str = "trellis", planted: int = 0) -> Iterator[Server]:
    """This gateway as a user starts it, with its log on disk, but without rate limits; with *planted* replies."""
    data = work / "trellis-sprout-data"
    shutil.rmtree(data, ignore_errors=True)
    if planted:
        plant(data, planted)
    program = _program("trellis", str(Path(sys.executable).parent))
    command = [program, "serve", "--port", "0", "--sprout-port", "0", "--data", str(data)]
    with _running("trellis-sprout", command, work, TRELLIS_LIMITS__RATES="off") as (process, log):
        yield _ready(name, process, log)
    shutil.rmtree(data, ignore_errors=True)


@contextmanager
def reference(work: Path, name: str = "go", flags: Sequence[str] = ()) -> Iterator[Server]:
    """The relay on the Go library, with its grove on disk; it watches that and logs, as the genuine one does."""
    binary, grove = work / "sprout-relay", work / "grove"
    made = subprocess.run(
        [_program("go"), "build", "-o", binary, "."], cwd=RELAY, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise Unavailable(made.stderr)
    shutil.rmtree(grove, ignore_errors=True)
    grove.mkdir(parents=True)
    with _running("sprout-relay", [str(binary), *flags, str(grove)], work) as (process, log):
        yield _ready(name, process, log)
    shutil.rmtree(grove, ignore_errors=True)


def _ready(name: str, process: subprocess.Popen[bytes], log: Path) -> Server:
    stdout = process.stdout
    assert stdout is not None  # it is a pipe
    line = stdout.readline() if select.select([stdout], [], [], PATIENCE_SECONDS)[0] else b""
    if not line:
        raise Unavailable(_last_words(log))
    told = json.loads(line)
    return Server(name, process.pid, told["sprout"], told.get("http", ""))


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "go": reference,
    "go-lean": partial(reference, name="go-lean", flags=["-lean"]),
    "trellis": trellis,
    "trellis-50": partial(trellis, name="trellis-50", planted=50),
    "trellis-5k": partial(trellis, name="trellis-5k", planted=5_000),
    "trellis-500k": partial(trellis, name="trellis-500k", planted=500_000),
}
USUAL = ("go", "trellis")
