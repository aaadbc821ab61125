"""The reference of all commands: `python -m gateway.commands.reference` prints docs/reference/commands.md.

It is the text of `--help`, so it says what the program says; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from gateway.cli import app

WIDTH = 100  # characters in a line of help

HEAD = """# Commands

Each command with its arguments, options and examples, as `--help` after it prints them.
`python -m gateway.commands.reference` makes this page from the program.

Results go to standard output, and everything else to standard error. The exit code is 0 if the command succeeded, 1 if
it failed, 2 if its arguments are wrong, and 130 if Ctrl-C ended it early. Colours are used on terminals only, and never
if `NO_COLOR` is set. `trellis --install-completion` lets the shell complete commands and options,
and `trellis --version` prints the version.
"""


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command of *group* and of the groups below it, each with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):  # a group; Typer bundles Click, so `click.Group` does not match
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


def help_text(command: Any, path: tuple[str, ...]) -> str:
    """Return what `--help` prints, whatever the terminal is like."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    name = " ".join(("trellis", *path))
    context = command.make_context(name, [], resilient_parsing=True, color=False, **width)
    with context:
        text: str = command.get_help(context)
    return text.rstrip()


def page() -> str:
    """Return docs/reference/commands.md."""
    sections = [
        f"\n## trellis {' '.join(path)}\n\n```text\n{help_text(command, path)}\n```\n"
        for path, command in commands(typer.main.get_group(app))
    ]
    return HEAD + "".join(sections)


if __name__ == "__main__":
    sys.stdout.write(page())
