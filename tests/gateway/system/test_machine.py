"""Freed memory returns to the system, tested in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FREE = """
from gateway.system.machine import TRIM_SECONDS, Trimmer, resident
calls = []
trimmer = Trimmer(lambda call, done: calls.append((call, done)))
def wait():
    for _ in range(TRIM_SECONDS):
        trimmer.tick()
wait()
assert not calls, "it holds no more than at first"
bytes(16 << 20)  # from here on long blocks stand among the others (mallopt(3), M_MMAP_THRESHOLD)
large, small = [], []
for n in range(32):
    large.append(b"x" * 1_000_000 + b"%d" % n)
    small.append(b"x" * 100_000 + b"%d" % n)
for n in range(1000):
    large.append(bytes(60_000) + b"%d" % n)
    small.append(b"y" * 600 + b"%d" % n)  # in the way of what lies before it
full = resident()
wait()
call, done = calls.pop()
call()
done(None)
assert resident() > full - (8 << 20), "it is in use"
del large
assert resident() > full - (8 << 20), "this C library gives it back by itself"
wait()
call, done = calls.pop()
call()
done(None)
assert resident() < full - (80 << 20), (resident(), full)
wait()
assert not calls
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps what was freed")
def test_freed_memory_is_given_back() -> None:
    subprocess.run([sys.executable, "-c", FREE], check=True)


ARENAS = """
import pathlib
import re
import threading
from gateway.system.machine import limit_arenas
limit_arenas()
barrier = threading.Barrier(8)
def allocate():
    held = [bytes(60_000) for _ in range(100)]
    barrier.wait()
    found.append(len(re.findall(r"^[0-9a-f]+[048c]000000-\\S+ rw-p 0+ 00:00 0 *$", maps(), re.MULTILINE)))
    barrier.wait()
found, maps = [], pathlib.Path("/proc/self/maps").read_text
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [1] * 8, found
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc has an arena for each thread")
def test_all_threads_but_the_first_share_an_arena() -> None:
    subprocess.run([sys.executable, "-c", ARENAS], check=True)
