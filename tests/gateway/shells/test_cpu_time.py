"""CPU times are read at a bounded rate."""

from __future__ import annotations

from itertools import count

import pytest

from gateway.shells import cpu_time
from gateway.shells.cpu_time import MAX_AGE, CpuClock, CpuTime, cpu_since


def test_steps_that_begin_at_about_the_same_time_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    now, readings = 100.0, count(1)
    monkeypatch.setattr(cpu_time, "perf_counter", lambda: now)
    monkeypatch.setattr(cpu_time, "thread_time", lambda: float(next(readings)))
    monkeypatch.setattr(cpu_time, "process_time", lambda: 50.0)
    clock = CpuClock()
    assert clock.begin() == CpuTime(1.0, 50.0)
    now += MAX_AGE / 2
    assert clock.begin() == CpuTime(1.0, 50.0)
    now += MAX_AGE
    assert clock.begin() == CpuTime(2.0, 50.0)
    assert cpu_since(clock.begin()) == CpuTime(1.0, 0.0)
    assert cpu_since(None) is None
