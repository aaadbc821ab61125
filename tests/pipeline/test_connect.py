"""A warehouse over Spark Connect: a server of the installed Spark, and its client in an environment of its own.

`make soak` installs the client (`CONNECT_PYTHON` says in which Python).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from pipeline.catalog import register
from pipeline.run import Run
from pipeline.session import prepare
from tests.pipeline.found import found
from tests.pipeline.test_processes import PATIENCE, QUICK, ROOT
from tests.ports import listens, reserved_port
from tests.waiting import until

CLIENT = os.environ.get("CONNECT_PYTHON")
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
pytestmark = pytest.mark.skipif(CLIENT is None, reason="needs the client of Spark Connect: `make soak`")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that knows nothing of the pipeline."""
    environment = os.environ | QUICK
    prepare(environment, local=True)  # type: ignore[arg-type]
    del environment["PYTHONPATH"]
    port = reserved_port()
    command = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", "local[2]", "--class", SERVER]
    for name, value in {"port": port, "address": "127.0.0.1"}.items():
        command += ["--conf", f"spark.connect.grpc.binding.{name}={value}"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.session.timeZone=UTC"]
    with (tmp_path / "server.log").open("wb") as out:
        process = subprocess.Popen(
            [*command, "spark-internal"], stdout=out, stderr=out, env=environment, cwd=tmp_path, start_new_session=True
        )
    try:
        until(lambda: listens(port))
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.timeout(2 * PATIENCE)
def test_a_client_elsewhere_finds_what_spark_finds(whole: Run, server: str) -> None:
    assert CLIENT is not None
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [CLIENT, str(ROOT / "tests/pipeline/by_connect.py"), server, str(whole.options.warehouse)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    register(whole.spark, whole.options.warehouse)
    told = json.loads(done.stdout)
    assert told == found(whole.spark)
    assert told["messages"][0] > 0
    assert told["search"], "the function for searching is there too"
