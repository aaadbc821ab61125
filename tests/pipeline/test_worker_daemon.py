"""The daemon that forks Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, sys
from pipeline.worker_daemon import prepare
prepare()
assert "pipeline.codecs" in sys.modules
print(len(os.listdir("/proc/self/task")))
"""


def frozen(_number: int) -> tuple[int, bool]:
    import gc

    return gc.get_freeze_count(), "pipeline.codecs" in sys.modules


def test_workers_share_what_the_daemon_has_imported(spark: Any) -> None:
    ((count, imported),) = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert count > 10_000
    assert imported


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux")
def test_the_daemon_has_no_thread_that_its_workers_would_lack() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["1"]
