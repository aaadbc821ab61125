"""The program for `spark-submit --py-files trellis.zip pipeline/submit.py JOB ...` (docs/pipeline.md)."""

from __future__ import annotations

import sys

import typer

from gateway.commands.common import say
from gateway.commands.pipeline import pipeline
from gateway.core.errors import OperatorError


def main() -> None:
    """Run the job that the command line names."""
    try:
        typer.run(pipeline)
    except OperatorError as error:
        say(f"trellis: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
