"""The program for `spark-submit --py-files trellis.zip pipeline/submit.py JOB ...` (docs/pipeline.md)."""

from __future__ import annotations

import sys

import typer

from gateway.commands.common import CommandError, say
from gateway.commands.pipeline import pipeline


def main() -> None:
    """Run the job that the command line names."""
    try:
        typer.run(pipeline)
    except CommandError as error:
        say(f"trellis: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
