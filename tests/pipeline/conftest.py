"""One Spark session for all tests of the pipeline, small and quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pipeline.config import LogSource, Options
from pipeline.jobs import ORDER, job
from pipeline.run import Run
from pipeline.session import start
from tests.pipeline.generate import MIXED, write

JAVA = "-XX:TieredStopAtLevel=1 -XX:-UseParallelGC -XX:+UseSerialGC"
# A few hundred rows are not worth compiled code, several partitions, or plans that change while they run; the programs
# of `test_processes.py` and `test_live.py` have all of these.
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start(Options(tmp_path_factory.mktemp("warehouse"), master="local[2]", java_options=JAVA))
    for name, value in SMALL.items():
        session.conf.set(name, value)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A warehouse that every job has worked on, for tests that only look; `MIXED` is what was logged."""
    place = tmp_path_factory.mktemp("whole")
    write(place / "log", MIXED, each=len(MIXED))
    run = Run(spark, Options(place / "warehouse", LogSource(place / "log")), lambda _text: None)
    assert all(job(name)(run) for name in ORDER[: ORDER.index("compact")])
    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a gateway would keep its log."""
    return tmp_path / "data [1]" / "log"


@pytest.fixture
def make_run(spark: SparkSession, tmp_path: Path, log: Path) -> Callable[..., Run]:
    """A run on the log of this test; what it says is kept in `said`."""

    def make(**options: Any) -> Run:
        given = {"warehouse": tmp_path / "warehouse", "source": LogSource(log), "master": "local[2]", **options}
        return Run(spark, Options(**given), lambda _text: None)

    return make
