"""The fault layer below the gateway (`shim.c`): built once; shared memory controls which system calls fail.

The classes here have the layout of the C structures of the same names.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
FILES = 4096


class NoCompiler(Exception):
    """There is nothing on this machine that compiles C."""


class Kind(IntEnum):
    """What a file of the data directory is."""

    LOG = 0
    INDEX = 1
    KEYS = 2


class Call(IntEnum):
    """The system calls that can fail; SYNC is fsync and fdatasync, of directories too."""

    OPEN = 0
    WRITE = 1
    SYNC = 2
    TRUNCATE = 3
    RENAME = 4
    READ = 5
    UNLINK = 6


class Rule(ctypes.Structure):
    """What becomes of one call on one kind of file."""

    _fields_ = [  # ctypes wants a list
        (name, ctypes.c_int32)
        for name in ("error", "left", "delay_us", "halves", "calls", "failed", "halved", "unused")
    ]
    error: int
    left: int
    delay_us: int
    halves: int
    calls: int
    failed: int


class File(ctypes.Structure):
    """What is on disk for certain of one file of the log."""

    _fields_ = [
        ("inode", ctypes.c_uint64),
        ("synced", ctypes.c_int64),
        ("lost", ctypes.c_int32),
        ("unnamed", ctypes.c_int32),
        ("renamed", ctypes.c_int32),
        ("unlinked", ctypes.c_int32),
    ]
    inode: int
    synced: int
    unnamed: int
    renamed: int
    unlinked: int


class _Memory(ctypes.Structure):
    _fields_ = [
        ("clock_ns", ctypes.c_int64),
        ("kill_step", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("rules", Rule * len(Call) * len(Kind)),
        ("files", File * FILES),
    ]


class Control:
    """The memory shared with one gateway, in a new file at *path*."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Memory)))
        with path.open("r+b") as file:
            self._memory = _Memory.from_buffer(mmap.mmap(file.fileno(), 0))

    def rule(self, kind: Kind, call: Call) -> Rule:
        """What becomes of *call* on files of *kind*, from now on and as counted so far."""
        rule: Rule = self._memory.rules[kind][call]
        return rule

    def fail(self, kind: Kind, call: Call, error: int, *, times: int = -1, halves: bool = False) -> None:
        """Let *call* fail with *error* (0 for none) so many *times*; *halves*: a write does half of its work first."""
        rule = self.rule(kind, call)
        rule.left, rule.halves, rule.error = times, halves, error

    def slow(self, kind: Kind, call: Call, seconds: float) -> None:
        """Let each *call* take so much longer."""
        self.rule(kind, call).delay_us = int(seconds * 1e6)

    def heal(self) -> None:
        """From now on everything works; the clock stays where it is."""
        for kind in Kind:
            for call in Call:
                self.fail(kind, call, 0, times=0)
                self.slow(kind, call, 0)

    def failures(self, kind: Kind, *calls: Call) -> int:
        """How many of *calls* have failed so far, or did half of what they were asked for."""
        return sum(self.rule(kind, call).failed for call in calls or Call)

    def clock(self, seconds: float) -> None:
        """Put the gateway's clock so far from ours."""
        self._memory.clock_ns = int(seconds * 1e9)

    def kill_after(self, steps: int) -> None:
        """Let the gateway kill itself after so many *steps* of retention and compaction; 0 for never."""
        self._memory.kill_step = steps

    @property
    def kill_pending(self) -> bool:
        """Whether it has still to kill itself."""
        return bool(self._memory.kill_step > 0)

    @property
    def steps(self) -> int:
        """How many steps of retention and compaction there were; each call on a name is two."""
        return int(self._memory.steps)

    def remember(self, path: Path) -> File:
        """What is known of a file that nothing was known of, to be filled in."""
        file: File = next(file for file in self._memory.files if not file.inode)
        file.inode = path.stat().st_ino
        return file

    def files(self) -> dict[int, File]:
        """What is on disk for certain, by inode."""
        return {file.inode: file for file in self._memory.files if file.inode}


@cache
def library() -> Path:
    """The compiled layer; `NoCompiler` where there is none to do it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("there is no C compiler on this machine")
    source = SOURCE.read_bytes()
    name = f"trellis-shim-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}.so"
    path = Path(tempfile.gettempdir()) / name
    if not path.exists() or path.stat().st_uid != os.getuid():
        made = path.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoCompiler(f"the fault layer cannot be compiled: {done.stderr}")
        made.replace(path)
    return path
