"""A warehouse in an object store: moto's S3 server, in a process of its own, and jobs that are killed.

It needs moto's server (`MOTO_SERVER` says where the program is; `make soak` installs it) and Spark's packages for
`s3a://`, which Spark fetches from Maven.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deltalake import DeltaTable

from pipeline.places import ENDPOINT, ObjectPath, _store, exists
from pipeline.schemas import BATCHES, MESSAGES, REJECTS, TABLES, TOPIC_PACKETS, TableSpec
from tests.pipeline.generate import lines, mixed, write
from tests.pipeline.test_processes import (
    EACH_ROUND,
    PATIENCE,
    SEED,
    SOAK,
    compare_by_pandas,
    ended,
    killed,
    made_at_once,
    trellis,
)
from tests.ports import listens, reserved_port
from tests.waiting import until

SERVER = os.environ.get("MOTO_SERVER")
ROUNDS = max(3, SOAK // 4)
PLAIN = {"allow_http": "true"}
WAREHOUSE = ObjectPath("trellis/some tables")
pytestmark = pytest.mark.skipif(SERVER is None, reason="needs moto's server and Maven: `make soak`")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of a store with an empty bucket, which the environment names."""
    assert SERVER is not None
    port = reserved_port()
    url = f"http://127.0.0.1:{port}"
    told = {ENDPOINT: url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    for name, value in {**told, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "store.log").open("wb") as out:
        process = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out)
    _store.cache_clear()
    try:
        until(lambda: listens(port))
        assert httpx.put(f"{url}/trellis").status_code == 200
        yield url
    finally:
        _store.cache_clear()
        process.terminate()
        process.wait(30)


def table(spec: TableSpec) -> DeltaTable | None:
    address = str(WAREHOUSE / spec.name)
    return DeltaTable(address, storage_options=PLAIN) if DeltaTable.is_deltatable(address, PLAIN) else None


def rows(found: DeltaTable, spec: TableSpec) -> list[dict[str, Any]]:
    columns = [name for name in spec.schema.fieldNames() if name != "checked_at"]
    told: list[dict[str, Any]] = found.to_pyarrow_table(columns=columns).to_pylist()
    return told


def digest(told: list[dict[str, Any]]) -> tuple[int, str]:
    return len(told), hashlib.sha256("\n".join(sorted(map(repr, told))).encode()).hexdigest()


def check_keys(spec: TableSpec) -> None:
    """Every key is in a table once; what could not be decoded has none."""
    if (found := table(spec)) is None:
        return
    told = [row for row in rows(found, spec) if spec is TOPIC_PACKETS or row.get("fault") is None]
    keys = [tuple(row[name] for name in spec.key) for row in told]
    assert len(keys) == len(set(keys)), spec.name


@pytest.mark.timeout(3 * PATIENCE * ROUNDS + 900)
def test_every_table_is_exact_whenever_a_job_is_killed(store: str, spark: Any, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    log, told = tmp_path / "log", [*lines(mixed(EACH_ROUND * ROUNDS)), b"rubbish\n"]
    given = ["all", "--source", f"log:{log}", "--warehouse", str(WAREHOUSE), "--master", "local[2]", "--heap", "512"]
    after: Counter[str] = Counter()
    for n in range(ROUNDS):
        some = told[EACH_ROUND * n : EACH_ROUND * (n + 1) + (n + 1 == ROUNDS)]
        write(log, some, each=len(some), first=EACH_ROUND * n + 1)
        after[killed(trellis(*given, "--follow", "--interval", "0.1"), WAREHOUSE, dice)] += 1
        for spec in TABLES:
            check_keys(spec)
        ended(trellis(*given))
        found = table(MESSAGES)
        assert found is not None
        assert sorted(row["seq"] for row in rows(found, MESSAGES)) == [*range(1, EACH_ROUND * (n + 1) + 1)]
        for spec in TABLES:
            check_keys(spec)
    print(f"{2 * ROUNDS} kills of seed {SEED} at {store}, after a commit of: {dict(after)}")  # noqa: T201  (for docs/pipeline.md, with -s)
    whole = made_at_once(spark, tmp_path / "whole", told)
    for spec in set(TABLES) - {REJECTS, BATCHES}:
        found, other = table(spec), DeltaTable(whole.options.warehouse / spec.name)
        assert found is not None
        assert digest(rows(found, spec)) == digest(rows(other, spec)), spec.name
    compare_by_pandas(WAREHOUSE, whole.options.warehouse)
    assert exists(WAREHOUSE / "report.html")
