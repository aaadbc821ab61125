"""`pytest --quick` leaves out exactly the tests that start a process."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import asyncio, os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
import pytest
from hypothesis import given, settings, strategies

tried = []

@pytest.fixture(scope="module")
def server():
    return subprocess.Popen([sys.executable, "-c", "1"])

def start():
    subprocess.run([sys.executable, "-c", "1"])

def test_itself(): start()
def test_its_fixture(server): server.wait()
def test_the_same_fixture_again(server): server.wait()
def test_in_a_thread():
    with ThreadPoolExecutor() as pool: pool.submit(start).result()
def test_in_a_group():
    async def go():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.create_subprocess_exec(sys.executable, "-c", "1"))
    asyncio.run(go())
def test_by_a_fork_server():
    from multiprocessing import get_context
    get_context("forkserver").Process(target=print).start()
def test_by_a_fork():
    if not os.fork(): os._exit(0)
@pytest.mark.parametrize("other", "ab")
@pytest.mark.parametrize("seed", range(60))
def test_of_seeds(seed, other): assert seed < 5
@settings(max_examples=500)
@given(strategies.integers())
def test_of_examples(value): tried.append(value)
def test_their_number(): assert len(tried) == 20
@pytest.mark.slow
def test_slow(): pass
def test_none(): assert threading.active_count()
def test_that_fails(): assert False
"""


def test_quick_skips_every_test_that_starts_a_process(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "--quick", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 failed, 13 passed, 7 skipped, 111 deselected" in done.stdout, done.stdout
    assert "test_that_fails" in done.stdout


def test_the_floor_of_coverage_only_rises() -> None:
    command = ["git", "log", "--format=", "--patch", "-G^fail_under", "--", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no checkout")
    earlier = [float(floor) for floor in re.findall(r"^\+fail_under = ([\d.]+)$", done.stdout, re.MULTILINE)]
    report = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]
    assert earlier
    assert report["fail_under"] >= max(earlier)
