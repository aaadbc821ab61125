"""The names of the metrics are a contract, and each has a value from the start."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from adapters import ADAPTERS
from gateway.commands.arbor_author import ArborAuthor
from gateway.core.histogram import Histogram
from gateway.demo_clients import SproutClient, StreamrClient
from gateway.monitoring.metrics import COUNTERS, FAULT_KINDS, GAUGES, HISTOGRAMS, Metrics
from tests.gateway.operated import SECONDS, Operated

ROOT = Path(__file__).parents[3]
GOLDEN = (ROOT / "tests" / "golden" / "metrics.txt").read_text().splitlines()
PROTOCOLS = {*(adapter.name for adapter in ADAPTERS), "rest"}


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def contract(found: dict[str, Metric]) -> list[str]:
    """The families, as the golden list has them; those of garbage collection and the like are Python's own."""
    lines = []
    for name, family in found.items():
        labels = next((list(sample.labels) for sample in family.samples), [])
        shown = ",".join(label for label in labels if label != "le")
        suffix = "_total" if family.type == "counter" else ""
        lines.append(f"{family.type} {name}{suffix}" + (f"{{{shown}}}" if shown else ""))
    return sorted(lines, key=lambda line: line.split()[1])


def value(text: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"there is no {name} with {labels}")


def test_names_types_and_labels_are_a_contract_and_there_from_the_start(operated: Operated) -> None:
    found = families(httpx.get(f"http://{operated.http}/metrics").text)
    assert contract(found) == GOLDEN
    for name in COUNTERS:
        samples = [sample for sample in found[f"trellis_{name}"].samples if sample.name.endswith("_total")]
        assert samples, name
        if "protocol" in COUNTERS[name].labels:
            assert {sample.labels["protocol"] for sample in samples} == PROTOCOLS
    kinds = {sample.labels["kind"]: sample.value for sample in found["trellis_faults"].samples}
    assert kinds == dict.fromkeys(FAULT_KINDS, 0.0)
    pairs = {(sample.labels["from"], sample.labels["to"]) for sample in found["trellis_delivery_seconds"].samples}
    assert pairs == {(origin, to) for origin in PROTOCOLS for to in PROTOCOLS}


def test_gauges_and_histograms_measure_the_traffic(operated: Operated) -> None:
    async def talk() -> str:
        async with (
            StreamrClient(operated.http) as streamr,
            SproutClient(operated.http, operated.server.sprout, ArborAuthor("a")) as ada,
        ):
            await streamr.subscribe("measured")
            await ada.publish("measured", {"content": "signed"})
            await streamr.next()
            async with httpx.AsyncClient(base_url=f"http://{operated.http}") as http:
                await http.post("/v1/channels/measured/messages", json=1)
                await streamr.next()
                return (await http.get("/metrics")).text

    text = asyncio.run(talk())
    assert value(text, "trellis_open_connections", protocol="streamr") == 1
    assert value(text, "trellis_open_connections", protocol="sprout") == 1
    assert value(text, "trellis_subscriptions", protocol="streamr") == 1
    assert value(text, "trellis_http_connections") >= 1
    assert value(text, "trellis_channels") >= 1
    assert (value(text, "trellis_links"), value(text, "trellis_links_up")) == (1, 0)
    assert value(text, "trellis_ready") == 1
    assert value(text, "trellis_delivery_seconds_count", **{"from": "rest", "to": "streamr"}) == 1
    assert 0 < value(text, "trellis_delivery_seconds_sum", **{"from": "rest", "to": "streamr"}) < SECONDS
    assert value(text, "trellis_signature_check_seconds_count", protocol="sprout") >= 1
    assert value(text, "trellis_sync_seconds_count") >= 1
    assert value(text, "trellis_disk_free_bytes") > 1 << 20
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    end = time.monotonic() + SECONDS
    while not is_settled(text, operated):
        assert time.monotonic() < end, text
        text = httpx.get(f"http://{operated.http}/metrics").text


def is_settled(text: str, operated: Operated) -> bool:
    """Whether everything is on disk and in the index, and the figures about both agree."""
    waiting = value(text, "trellis_index_lag_records") or value(text, "trellis_unsynced_bytes")
    written = value(text, "trellis_batch_records_sum") == value(text, "trellis_log_last_sequence")
    size = sum(path.stat().st_size for path in (operated.server.data / "log").iterdir())
    return not waiting and written and value(text, "trellis_log_bytes") == size


def test_the_metrics_port_needs_no_key_and_serves_only_monitoring(operated: Operated) -> None:
    own = f"http://{operated.server.ready['metrics']}"
    assert contract(families(httpx.get(f"{own}/metrics").text)) == GOLDEN
    assert httpx.get(f"{own}/readyz").json() == {"status": "ready"}
    assert httpx.get(f"{own}/healthz").status_code == 200
    assert httpx.get(f"{own}/v1/channels").status_code == 404
    assert httpx.post(f"{own}/metrics").status_code == 404


def test_observations_are_counted_below_their_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for seen in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(seen)
    assert (histogram.cumulative(), histogram.sum) == ([2, 3, 4], 10.0)


def test_a_refusal_is_counted_and_reported() -> None:
    metrics, told = Metrics(("toy",)), list[object]()
    metrics.on_refused = lambda *what: told.append(what)
    metrics.refused("toy", "403", path="/x")
    assert told == [("toy", "403", {"path": "/x"})]
    assert 'trellis_refused_total{protocol="toy",reason="403"} 1.0' in asyncio.run(metrics.exposition()).decode()


def test_every_kind_of_fault_is_there_from_the_start() -> None:
    sources = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    program = "\n".join(path.read_text() for path in sources)
    counted = set(re.findall(r'count\("faults", "(\w+)"', program)) | set(re.findall(r'on_fault\("(\w+)"\)', program))
    assert counted == set(FAULT_KINDS)


def test_the_tables_have_a_row_for_each_name() -> None:
    names = {line.split()[1].split("{")[0] for line in GOLDEN if "trellis_" in line}
    ours = {f"trellis_{name}_total" for name in COUNTERS} | {f"trellis_{name}" for name in (*GAUGES, *HISTOGRAMS)}
    assert names == ours
