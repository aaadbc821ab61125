"""Checks what a job was given before Spark starts, which takes seconds: each fault is one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .config import (
    FORMAT,
    FORMAT_FILE,
    MANIFEST,
    BadOption,
    DumpSource,
    GroveSource,
    HttpSource,
    LogSource,
    Options,
    bearer,
)
from .errors import NoJava
from .jobs import ALL, IMPORT, MIGRATE, SQL
from .jvm import find_java
from .places import ObjectPath, Place, exists, read

TIMEOUT_SECONDS: Final = 5.0  # for the answer of a gateway that takes connections: it may have much to do
CONNECT_SECONDS: Final = 1.0
HTTP_PORT, HTTPS_PORT = 80, 443  # of a Kubernetes API whose URL has none
SUBMITTED_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the program that it starts
MASTER: Final = re.compile(r"local(\[([1-9]\d*|\*)(,[1-9]\d*)?\])?|yarn|(spark|k8s)://.+")
CLUSTER: Final = re.compile(r"(?:spark|k8s)://((?:https?://)?)([^/]+)")  # a scheme, and addresses with commas between

# The kinds of source that a job reads, and what they are called; other jobs read only tables.
LOGS: Final = (LogSource, HttpSource), "log:DIR or http:URL"
READS: Final = {
    "ingest": LOGS,
    ALL: LOGS,
    IMPORT: ((GroveSource, DumpSource, LogSource), "grove:DIR, streamr:PATH or log:PATH"),
}
# What the pipeline requests of the gateway it reads, and the right that each needs.
REQUESTS: Final = {"/v1/log?limit=1": "admin:*", "/v1/stats": "history:*"}


def check(job: str, options: Options) -> None:
    """Raise `BadOption` if *job* cannot work with *options*."""
    if not MASTER.fullmatch(options.master):
        raise BadOption(f"--master {options.master!r} is none of local[N], spark://HOST:PORT, k8s://URL and yarn")
    if options.key is not None and not (options.key.isascii() and options.key.isprintable()):
        raise BadOption("the key in TRELLIS_KEY or --key has characters that no key has")
    if job in READS:
        _check_source(job, options)
    if (job == SQL) != (options.query is not None):
        raise BadOption(f'{job}: a query belongs to sql, as in trellis pipeline {SQL} "SELECT count(*) FROM messages"')
    if job == SQL and options.follow:
        raise BadOption(f"{SQL} answers once; leave --follow out")
    if options.objects is not None and options.keep_hours < 1:
        raise BadOption("--keep-hours: at least 1 in an object store, where another driver may be writing files")
    if options.objects is None:
        _check_directory(options.warehouse)
    _check_warehouse(job, options.tables)
    _check_output(job, options.output)
    if options.publish is not None:
        _request(options.publish, "/v1/protocols", options.key, "--publish")
    if job != MIGRATE and SUBMITTED_VARIABLE not in os.environ:
        _check_spark(options)


def _check_spark(options: Options) -> None:
    """Raise `BadOption` if Spark cannot start: without Java, memory for its heap, or a master of its cluster."""
    master, memory = options.master, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    if options.heap_megabytes > memory:
        raise BadOption(f"--heap {options.heap_megabytes}: this machine has {memory:,} MB")
    cluster = CLUSTER.match(master)
    if cluster and not any(_listens(f"{cluster[1]}{each}") for each in cluster[2].split(",")):
        raise BadOption(f"--master: nothing listens at {master}")
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise BadOption("--master yarn: set HADOOP_CONF_DIR to the directory of the cluster's configuration")
    try:
        find_java(os.environ)
    except NoJava as error:
        raise BadOption(str(error)) from None


def _listens(address: str) -> bool:
    """Whether a program listens at *address*, which has a port or is a URL."""
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        port = parts.port or (HTTP_PORT if parts.scheme == "http" else HTTPS_PORT)
        with socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def _check_source(job: str, options: Options) -> None:
    source, (kinds, named) = options.source, READS[job]
    if not isinstance(source, kinds):
        raise BadOption(f"{job} needs a source: --source {named}")
    match source:
        case HttpSource(url, key):
            for path, right in REQUESTS.items():
                _request(url, path, key, "--source", right)
        case LogSource(path) | GroveSource(path) | DumpSource(path):
            if not os.path.exists(path):
                raise BadOption(f"--source: there is no {path}")
            if not path.is_dir() and not (job == IMPORT and isinstance(source, LogSource | DumpSource)):
                raise BadOption(f"--source: {path} is no directory")


def _request(url: str, path: str, key: str | None, option: str, right: str = "") -> None:
    """Raise `BadOption` unless the gateway at *url* answers the request of *path* with *key*."""
    import httpx  # a fifth of a second, which other faults need not wait for

    try:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS)
        with httpx.stream("GET", f"{url}{path}", headers=bearer(key), timeout=timeout) as answer:
            status = answer.status_code
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise BadOption(f"{option}: {url} cannot be reached: {error}") from None
    if status in (401, 403):
        needs = f"; it needs the right {right}" if right else ""
        what = "a request without a key: pass one in TRELLIS_KEY" if key is None else "the key in TRELLIS_KEY or --key"
        raise BadOption(f"{option}: {url} refuses {what}{needs} (trellis key add)")
    if status != 200:
        raise BadOption(f"{option}: {url}{path} answers {status}; is this a gateway?")


def _check_directory(path: Path) -> None:
    there = next(each for each in (path, *path.parents) if os.path.exists(each))
    if not there.is_dir():
        raise BadOption(f"--warehouse: {there} is a file; name a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadOption(f"--warehouse: {there} cannot be written")


def _check_warehouse(job: str, path: Place) -> None:
    """Raise `BadOption` unless *path* is a warehouse in a format that *job* can work with, or can become one."""
    found = _format(path) if isinstance(path, Path) else _format_in_store(path)
    if job == SQL and found is None:
        raise BadOption(f"--warehouse: {path} is no warehouse; name the directory of the tables")
    if job == MIGRATE:
        if found not in (1, FORMAT):
            what = "is no warehouse" if found is None else f"has format {found}"
            raise BadOption(f"--warehouse: {path} {what}; migrate turns format 1 into {FORMAT}")
    elif found == 1:
        command = shlex.join(["trellis", "pipeline", MIGRATE, "--warehouse", str(path)])
        raise BadOption(f"--warehouse: {path} has format 1; this turns it into format {FORMAT}: {command}")
    elif found not in (None, FORMAT):
        raise BadOption(
            f"--warehouse: {path} has format {found}, and this version of Trellis has format {FORMAT};"
            " use the version that wrote it, or name another directory"
        )


def _format(path: Path) -> Any:
    """Return the format of the warehouse *path*, None if it is none yet."""
    try:
        note: Any = json.loads((path / FORMAT_FILE).read_text())
        return note["format"]
    except (FileNotFoundError, NotADirectoryError):
        return 1 if any(path.glob(f"*/*/{MANIFEST}")) else None  # older than the file, or new
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadOption(f"--warehouse: {path / FORMAT_FILE} cannot be read: {error}") from None


def _format_in_store(path: ObjectPath) -> Any:
    """Return the format of the warehouse *path*, None if it is none yet; raise `BadOption` if the store refuses."""
    try:
        text = read(path / FORMAT_FILE, attempts=1)
        if text is None and not exists(ObjectPath(path.key.partition("/")[0]), attempts=1):
            raise BadOption(f"--warehouse: there is no bucket for {path}, or these keys may not see it")
        return None if text is None else json.loads(text)["format"]
    except BadOption:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadOption(f"--warehouse: {path / FORMAT_FILE} cannot be read: {' '.join(str(error).split())}") from None


def _check_output(job: str, output: Path | None) -> None:
    if job == IMPORT:
        if output is None:
            raise BadOption("import needs a folder for its segments: --output FOLDER")
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise BadOption(f"--output: {output} is not empty; choose another folder")
    elif output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise BadOption(f"--output: {output} is a directory, or in none; name a file")
