"""Spark's daemon that forks its Python workers, with the codecs imported that they need.

Spark runs this module in place of `pyspark.daemon` (`session.settings`). Workers share what was imported before they
were forked: importing the codecs takes a second of processor time, and a job has several workers on each core. Each of
their tasks ends with a collection of garbage, which passes over what is frozen. What starts threads, as pyarrow does,
must not be imported here, because a forked process has only one.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark.daemon import manager


def prepare() -> None:
    """Import what workers need and what starts no thread, and freeze it."""
    import_module("pipeline.codecs")
    gc.freeze()


if __name__ == "__main__":
    prepare()
    manager()
