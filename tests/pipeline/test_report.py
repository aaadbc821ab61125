"""The report equals the tables, is shown by a browser, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http.pipeline_report import read_report
from pipeline.jobs import report
from pipeline.report.axes import ROUND_TIMES, period_name, round_period, time_ticks, value_axis
from pipeline.report.charts import Periods, bars_over_time, lines_over_time
from pipeline.report.data import ReportData, gather
from pipeline.report.page import page
from pipeline.run import Run
from pipeline.schemas import CHANNEL_MINUTE, FAULTS, GAPS, INTEGRITY, LATENCY_MINUTE, MESSAGES, PUBLISHERS, STORAGE
from tests.pipeline.ingested import files

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Cells(HTMLParser):
    """The text of every table by its id, and of every element with an id; all attributes that name something else."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, str] = {}
        self.links: list[str] = []
        self._table = self._id = ""
        self._cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag == "table":
            self._table = told["id"] or ""
            self.tables[self._table] = []
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag == "td":
            self.tables[self._table][-1].append("")
            self._cell = True
        elif told.get("id"):
            self._id = told["id"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._cell = False
        elif tag == "table":
            self._table = ""
        elif tag == "b":
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[self._table][-1][-1] += data
        elif self._id:
            self.texts[self._id] = data


def read(text: str) -> Cells:
    cells = Cells()
    cells.feed(text)
    return cells


def rows(cells: Cells, name: str) -> list[tuple[Any, ...]]:
    """A table's rows, numbers as numbers, without the pictures."""
    told = (tuple(_value(cell) for cell in row if cell) for row in cells.tables[name])
    return [row for row in told if row]


def _value(cell: str) -> Any:
    return int(cell.replace(",", "")) if re.fullmatch(r"[\d,]+", cell) else cell


class Made(NamedTuple):
    """A warehouse with everything in it, its report, and the numbers that this was made of."""

    run: Run
    path: Path
    numbers: ReportData


@pytest.fixture(scope="module")
def made(whole: Run) -> Made:
    kept: list[ReportData] = []

    def keep(run: Run) -> ReportData:
        kept.append(gather(run))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "gather", keep)
        report.run(whole)
    return Made(whole, whole.options.warehouse / "report.html", *kept)


def asked(run: Run, spec: Any, query: str) -> list[tuple[Any, ...]]:
    """What DuckDB finds in the files of a table."""
    return duckdb.execute(query.format(files(run.table(spec).path))).fetchall()


def compare(run: Run, cells: Cells) -> None:
    """Every number on the page is one that DuckDB finds."""
    total = asked(run, MESSAGES, "SELECT count(*), count(*) FILTER (kind = 'message') FROM {}")
    assert [(_value(cells.texts["records"]), _value(cells.texts["messages"]))] == total
    by_channel = "SELECT channel, sum(n), sum(bytes) FROM {} GROUP BY 1 ORDER BY 2 DESC, 1"
    assert rows(cells, "channels") == asked(run, CHANNEL_MINUTE, by_channel)
    assert rows(cells, "gaps") == asked(run, GAPS, "SELECT state, count(*) FROM {} GROUP BY 1 ORDER BY 1")
    verdicts = {
        (check, verdict): n
        for check, verdict, n in asked(run, INTEGRITY, 'SELECT "check", verdict, count(*) FROM {} GROUP BY 1, 2')
    }
    names = ("ok", "bad", "unverifiable")
    found = {(row[0], name): n for row in rows(cells, "integrity") for name, n in zip(names, row[1:], strict=True) if n}
    assert found == verdicts
    assert rows(cells, "rejects") == [("foreign", 1)]
    faults = "SELECT concat(what, ': ', cause), n FROM {} ORDER BY n DESC, what, cause"
    assert rows(cells, "faults") == asked(run, FAULTS, faults) != []
    publishers = "SELECT publisher, protocol, messages, missing, bad FROM {} WHERE missing + bad > 0"
    assert rows(cells, "publishers") == asked(run, PUBLISHERS, f"{publishers} ORDER BY missing + bad DESC, 2, 1") != []
    size = "content_bytes + wire_bytes + reference_bytes"
    assert rows(cells, "storage") == asked(
        run, STORAGE, f"SELECT channel, messages, {size} FROM {{}} ORDER BY 3 DESC, 1"
    )


def test_its_numbers_are_those_of_the_tables(made: Made) -> None:
    run, path, _ = made
    text = path.read_text()
    cells = read(text)
    compare(run, cells)
    assert cells.links == [], "it needs nothing from anywhere"
    assert "url(" not in text
    assert "<script" not in text


def test_the_gateway_reads_its_numbers(made: Made) -> None:
    run, path, _ = made
    told = json.loads(read_report(run.options.warehouse))
    cells = read(path.read_text())
    assert [told["records"], told["messages"]] == [_value(cells.texts[name]) for name in ("records", "messages")]
    assert [tuple(row.values()) for row in told["channels"]] == rows(cells, "channels")
    assert [tuple(row.values()) for row in told["gaps"]] == rows(cells, "gaps")
    assert [tuple(row.values()) for row in told["unreadable"]] == rows(cells, "rejects") == [("foreign", 1)]
    assert [row["job"] for row in told["work"]] == [row[0] for row in rows(cells, "batches")]
    assert [f"{row['from']} → {row['to']}" for row in told["flows"]] == [row[0] for row in rows(cells, "flows")] != []


@pytest.mark.skipif(BROWSER is None, reason="there is no browser here")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it(made: Made, tmp_path: Path, width: int) -> None:
    run, path, _ = made
    common = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/browser"]
    common += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},2000", "--virtual-time-budget=1000"]
    dom = subprocess.run([*common, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    compare(run, read(dom.stdout))
    picture = tmp_path / "page.png"
    subprocess.run([*common, f"--screenshot={picture}", path.as_uri()], capture_output=True, timeout=90, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    inner, scrolled = measured(common, path.read_text(), tmp_path / "frame.html", width)
    assert inner == width
    assert scrolled <= width, "nothing is cut off, and nobody has to scroll sideways"


def measured(browser: list[str], page: str, file: Path, width: int) -> tuple[int, int]:
    """The widths of *page* and of what is in it, in a frame: a window may not be as narrow as a telephone."""
    file.write_text(
        f'<title></title><iframe style="width:{width}px;height:2000px;border:0" srcdoc="{escape(page)}"></iframe>'
        "<script>onload = () => { const shown = frames[0]; document.title ="
        " shown.innerWidth + ' ' + shown.document.documentElement.scrollWidth; };</script>"
    )
    command = [*browser, "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    found = re.search(r"<title>(\d+) (\d+)</title>", dom)
    assert found is not None, dom[:300]
    return int(found[1]), int(found[2])


def test_names_that_peers_chose_are_text() -> None:
    nasty = "<script>alert(1)</script>\x1b[2J" + "x" * 100
    flows = [("<i>", nasty, 1, 0, 1.0, 2.0, 3.0)]
    given: dict[str, Any] = {
        **{"gateways": ["<b>"], "records": 1, "messages": 1, "first_time": 0, "last_time": 1, "first_seq": 1},
        **{"last_seq": 1, "bucket_minutes": 1, "begin": 0, "end": 0, "protocols": [], "traffic": [(0, "<i>", 1)]},
        **{"channels": [(nasty, 1, 1)], "channel_count": 1, "flows": flows},
        **{"latency": [("<i>", nasty, 0, 1.0, 2.0, 3.0)]},
        **{"integrity": [("<i>", "ok", 1)], "gaps": [("<i>", 1)], "forest": {}, "rejects": [("<i>", 1)], "batches": []},
    }
    numbers = ReportData(
        **given,
        answers=[("<i>", nasty, 3), ("rest", "rest", 1)],
        pairs=[("<i>", nasty, "<i>", "<b>", 3), ("rest", "ann", "rest", "bob", 1)],
        answer_times=[(nasty, 2, 500.0, 1500.0)],
        retention=[("2026-11-16", 0, 4), ("2026-11-16", 1, 3), ("2026-11-23", 0, 2)],
        threads=[(0, 2, 0, None), (1, 3, 2, 500.0)],
        deepest=14,
        faults=[("check <i>", nasty, 4), ("line", "torn", 1)],
        storage=[(nasty, 2, 10, 20, 30), ("lobby", 1, 5, 0, 0)],
        publishers=[(nasty, "<i>", 5, 3, 1), ("0xa", "streamr", 4, 0, 2)],
    )
    text = page(numbers, 0)
    cells = read(text)
    assert rows(cells, "pairs")[0][1] == "<b>", "a long name cuts off no other"
    assert rows(cells, "pairs")[1] == ("ann", "bob", "rest → rest", 1)
    assert rows(cells, "answers")[1] == ("rest → rest", 1)
    assert rows(cells, "answer-times")[0][1:] == (2, "0.50", "1.50")
    assert rows(cells, "retention") == [("2026-11-16", 4, 3, 0, 0), ("2026-11-23", 2, 0, 0, 0)]
    assert rows(cells, "threads") == [(0, 2, 0, "-"), (1, 3, 2, "0.50")]
    assert "The deepest thread has 14." in text
    assert rows(cells, "faults")[1] == ("line: torn", 1)
    assert rows(cells, "storage")[1] == ("lobby", 1, 5)
    assert rows(cells, "publishers")[1] == ("0xa", "streamr", 4, 0, 2)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "<b>" not in text.partition("</h1>")[2].partition("</p>")[0]
    assert "<i>" not in text


def test_bars_are_stacked_and_the_tallest_fills_the_picture() -> None:
    drawn = bars_over_time([(0, "rest", 1), (0, "sprout", 3), (120_000, "rest", 2)], Periods(0, 120_000, 60_000))
    shapes = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="0.84" height="([\d.]+)"', drawn)
    assert [tuple(map(float, shape)) for shape in shapes] == [(0.08, 75, 25), (0.08, 0, 75), (2.08, 50, 50)]
    assert 'viewBox="0 0 3 100"' in drawn
    assert ">4</span>" in drawn


def test_lines_break_where_a_period_is_missing() -> None:
    rows = [(0, (1.0, 4.0)), (60_000, (2.0, 4.0)), (180_000, (4.0, 4.0))]
    drawn = lines_over_time(rows, Periods(0, 180_000, 60_000), "x")
    paths = re.findall(r'class="line(\d)" d="([^"]+)"', drawn)
    assert paths == [("0", "M0,75.00h1V50.00h1M3,0.00h1"), ("1", "M0,0.00h1V0.00h1M3,0.00h1")]


@given(st.floats(1e-3, 1e9), st.booleans())
def test_an_axis_has_few_round_steps_and_room_for_all(most: float, whole: bool) -> None:
    axis = value_axis(most, whole=whole)
    assert axis.top >= most * (1 - 1e-6)
    assert 2 <= len(axis.ticks) <= 5
    assert [axis.ticks[0].at, axis.ticks[-1].at] == [0, 1]
    texts = [tick.text for tick in axis.ticks]
    assert len(texts) == len(set(texts))
    assert float(texts[-1].replace(",", "")) == pytest.approx(axis.top)


@given(st.integers(0, 2 * 10**12), st.integers(1, 10**8))
def test_an_axis_of_time_has_few_round_times(begin: int, minutes: int) -> None:
    ticks = time_ticks(begin, begin + minutes * 60_000)
    assert len(ticks) <= 4
    assert all(0 <= tick.at <= 1 for tick in ticks)
    assert len(ticks) >= 1 or minutes < 8
    assert all(len(tick.text) <= 5 for tick in ticks), "they have room beside each other in a picture of 300 pixels"


def test_a_time_axis_marks_the_start_of_days_and_years() -> None:
    new_year = 1_767_225_600_000
    hours, days = (time_ticks(new_year - n * 3_600_000, new_year + n * 3_600_000) for n in (20, 72))
    assert [tick.text for tick in hours] == ["12:00", "2026", "12:00"]
    assert [tick.text for tick in days] == ["12-30", "2026", "01-03"]
    assert [tick.text for tick in time_ticks(new_year + 1, new_year + 60 * 86_400_000)] == ["01-07", "01-27", "02-16"]


@given(st.integers(0, 2 * 10**12), st.integers(0, 10**8))
@example(60_000, 239)  # 120 periods of two minutes from one end to the other, and one more that both ends touch
def test_a_picture_has_periods_of_a_round_length(begin: int, minutes: int) -> None:
    end = begin + minutes * 60_000
    step = round_period(begin, end, 120)
    number = {each: end // each - begin // each + 1 for each in ROUND_TIMES}
    assert number[step] <= 120
    assert all(number[shorter] > 120 for shorter in ROUND_TIMES if shorter < step)


def test_periods_have_names() -> None:
    told = {minutes: period_name(minutes) for minutes in (1, 30, 60, 720, 1440, 28_800)}
    assert told == {
        **{1: "minute", 30: "period of 30 minutes", 60: "hour", 720: "period of 12 hours", 1440: "day"},
        28_800: "period of 20 days",
    }
    named = {period_name(step // 60_000) for step in ROUND_TIMES}
    assert len(named) == len(ROUND_TIMES), "every length that a period can have is told from the others"


def test_percentiles_over_time_are_those_of_the_minutes(made: Made) -> None:
    run, _, numbers = made
    assert numbers.bucket_minutes == 1
    query = "SELECT from_protocol, to_protocol, epoch_ms(minute), p50, p95, p99 FROM {} ORDER BY ALL"
    assert numbers.latency == asked(run, LATENCY_MINUTE, query)
    assert len(numbers.latency) > 2


def test_an_empty_warehouse_has_a_report(make_run: Callable[..., Run]) -> None:
    run = make_run()
    run.options.warehouse.mkdir()
    report.run(run)
    assert "There are no messages yet." in (run.options.warehouse / "report.html").read_text()
