"""`trellis bench`: a short, bounded load of a running gateway, and how long messages took."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import anyio
import typer

from . import bench_load
from .common import AsJson, CommandError, say, show, table, visible
from .remote import DEFAULT_URL, Key, translated
from .units import plural

MAX_SECONDS = 60
MAX_RATE = 1_000  # messages a second: as much as one peer may publish by default
MAX_LISTENERS = 50
MAX_DELIVERIES = 5_000  # a second, to all listeners
MAX_SIZE = 16_384  # bytes, which fit every protocol


def bench(
    url: Annotated[
        str, typer.Argument(envvar="TRELLIS_URL", metavar="[URL]", help="The gateway, which should be your own.")
    ] = DEFAULT_URL,
    seconds: Annotated[float, typer.Option(min=0.5, max=MAX_SECONDS, help="How long each way publishes.")] = 5.0,
    rate: Annotated[float, typer.Option(min=1, max=MAX_RATE, help="Messages a second.")] = 100.0,
    listeners: Annotated[
        int, typer.Option(min=0, max=MAX_LISTENERS, help="Half of them by REST, half by WebSocket.")
    ] = 10,
    size: Annotated[int, typer.Option(min=0, max=MAX_SIZE, help="Bytes that each message is padded by.")] = 100,
    as_json: AsJson = False,
    key: Key = None,
) -> None:
    """Measure a running gateway with a short load.

    Publishes by REST and then by WebSocket (the topic relay) on a channel of its own, at a bounded rate, and measures
    how long each message takes to the disk and to each listener. It shows what this gateway does under an ordinary
    load, not the most that it can do. The messages remain in its log as long as any others. The load ends early if
    listeners are more than a second behind. The exit code is 1 then, and if a message was refused or lost. With keys it
    needs publish and subscribe on channels called bench/*.

    \b
    Examples:
      trellis bench
      trellis bench http://127.0.0.1:8080 --rate 500 --listeners 2
      trellis bench --seconds 2 --json
    """
    if rate * listeners > MAX_DELIVERIES:
        raise typer.BadParameter(f"more than {MAX_DELIVERIES:,} deliveries a second", param_hint="--rate, --listeners")
    load = bench_load.Load(url, key, f"bench/{secrets.token_hex(4)}", seconds, rate, listeners, size)
    if not as_json:
        say(f"{_described(load)}; this takes {plural(round(2 * seconds), 'second')}")
    with translated():
        outcome = anyio.run(partial(bench_load.run, load))
    show(_for_programs(load, outcome), as_json, _for_people(load, outcome))
    _judge(outcome)


def _judge(outcome: bench_load.BenchOutcome) -> None:
    """Raise `CommandError` if a message was refused or lost, or if the load ended early."""
    lost = sum(flow.expected - len(flow.latencies) for flow in outcome.flows)
    if outcome.refused or lost:
        first = f"; the first refusal: {outcome.refused[0]}" if outcome.refused else ""
        raise CommandError(f"{plural(len(outcome.refused), 'message')} refused, {lost:,} lost{first}")
    if outcome.ended_early:
        ways = " and ".join(outcome.ended_early)
        raise CommandError(f"the load by {ways} ended early: listeners were too far behind")


def _described(load: bench_load.Load) -> str:
    listeners = plural(load.listeners, "listener")
    return f"{load.rate:,.0f} messages a second to {listeners}, on channel {load.channel} of {load.url}"


def _for_programs(load: bench_load.Load, outcome: bench_load.BenchOutcome) -> dict[str, Any]:
    asked = {name: value for name, value in asdict(load).items() if name != "key"}
    found = {"published": outcome.published, "refused": len(outcome.refused)}
    exceptions = {"leftOut": outcome.left_out, "endedEarly": outcome.ended_early}
    return asked | found | exceptions | {"flows": [flow.row() for flow in outcome.flows]}


def _for_people(load: bench_load.Load, outcome: bench_load.BenchOutcome) -> str:
    head = ("FROM, TO", "MESSAGES", "ARRIVED", "MEDIAN", "99 %", "LONGEST")
    rows = []
    for row in map(bench_load.BenchFlow.row, outcome.flows):
        times = ("-" if ms is None else f"{ms:,.1f} ms" for ms in row["milliseconds"].values())
        rows.append((row["flow"], f"{row['expected']:,}", f"{row['arrived']:,}", *times))
    reached = ", ".join(f"{a_second:,.1f} a second by {name}" for name, a_second in outcome.published.items())
    left_out = "" if outcome.left_out is None else f"\n{visible(outcome.left_out)}"
    return f"{table([head, *rows])}\n\nPublished: {reached}, of {load.rate:,.0f} asked for.{left_out}"
