"""`make audit`: known vulnerabilities of the versions in the locks, and which of them nobody could be asked about.

`python -m tests.audit PIP_AUDIT -r LOCK ... [--advisories DATABASE]` asks the index with pip-audit. Some mirrors
of it pass no advisories on, so DATABASE may name a clone of https://github.com/pypa/advisory-database, whose
advisories (format: https://ossf.github.io/osv-schema/) are compared with the locks; it knows what it knew on the day of
its newest commit. The exit code is 0 if everything was looked up and nothing found, 1 if something was found, 2 if
something could not be looked up, or only in a database whose newest commit is older than `MAX_AGE_DAYS`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
NOT_LOOKED_UP = 2
MAX_AGE_DAYS = 7


class Findings(NamedTuple):
    """Advisories by package, and the packages that were looked up."""

    advisories: dict[str, list[str]]
    known: set[str]


def pins(locks: Iterable[Path]) -> dict[str, set[str]]:
    """The versions of each package in *locks*."""
    found: dict[str, set[str]] = {}
    for lock in locks:
        for name, version in PINNED.findall(lock.read_text()):
            found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def ask_index(program: str, locks: Iterable[Path]) -> Findings:
    """What the package index says, asked by pip-audit; ends with what that says if it has no result."""
    command = [program, "--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    for lock in locks:
        command += ["-r", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # its summary passes over what it skips
    if not done.stdout:
        sys.exit(done.stderr)
    found = Findings({}, set())
    for row in json.loads(done.stdout)["dependencies"]:
        if "skip_reason" not in row:
            found.known.add(canonicalize_name(row["name"]))
            if row["vulns"]:
                found.advisories[f"{row['name']} {row['version']}"] = [each["id"] for each in row["vulns"]]
    return found


def compare(database: Path, pinned: Mapping[str, set[str]]) -> Findings:
    """What the clone *database* says of *pinned* versions; a package without advisories is looked up, too."""
    found = Findings({}, set(pinned))
    for name, versions in sorted(pinned.items()):
        for path in sorted((database / "vulns" / name).glob("*.yaml")):
            advisory = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
            for version in versions:
                if affects(advisory, name, version):
                    found.advisories.setdefault(f"{name} {version}", []).append(advisory["id"])
    return found


def affects(advisory: Mapping[str, Any], name: str, version: str) -> bool:
    """Whether *advisory* is about *version* of the package *name*."""
    if "withdrawn" in advisory:
        return False
    places = [each for each in advisory["affected"] if canonicalize_name(each["package"]["name"]) == name]
    return any(
        version in map(str, place.get("versions", ()))
        or any(_contains(row, version) for row in place.get("ranges", ()))
        for place in places
    )


def _contains(ranges: Mapping[str, Any], version: str) -> bool:
    """Whether a range of versions contains *version*: its events are in order (OSV, `affected[].ranges[].events`)."""
    inside, asked = False, Version(version)
    for event in ranges["events"] if ranges["type"] == "ECOSYSTEM" else ():
        ((kind, text),) = event.items()
        if kind == "introduced":
            inside = inside or text == "0" or asked >= Version(str(text))
        elif (kind == "fixed" and asked >= Version(str(text))) or (
            kind == "last_affected" and asked > Version(str(text))
        ):
            inside = False
    return inside


def report(findings: Iterable[tuple[str, Findings]], pinned: Mapping[str, set[str]]) -> Iterator[str]:
    """Lines for people."""
    for where, found in findings:
        yield f"{where}: {len(found.known & set(pinned))} of {len(pinned)} packages looked up"
        for package, ids in sorted(found.advisories.items()):
            yield f"  {package}: {', '.join(ids)}"


def main() -> int:
    """Look everything up and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description="Known vulnerabilities in locks.")
    parser.add_argument("program", help="pip-audit")
    parser.add_argument("-r", dest="locks", action="append", type=Path, required=True, help="a lock")
    parser.add_argument("--advisories", default="", help="a clone of the advisory database")
    arguments = parser.parse_args()
    pinned, database = pins(arguments.locks), arguments.advisories
    findings = [("package index", ask_index(arguments.program, arguments.locks))]
    known = set(findings[0][1].known)
    if database:
        now, made = time.time(), newest_commit(database)
        found = compare(Path(database), pinned)
        findings.append((f"advisory database of {time.strftime('%Y-%m-%d', time.gmtime(made))}", found))
        if now - made < MAX_AGE_DAYS * 86_400:
            known |= found.known
    sys.stdout.write("\n".join(report(findings, pinned)) + "\n")
    missing = sorted(set(pinned) - known)
    if missing:
        sys.stdout.write(f"nobody knows today's advisories about {len(missing)}: {', '.join(missing)}\n")
    if any(found.advisories for _, found in findings):
        return 1
    return NOT_LOOKED_UP if missing else 0


def newest_commit(clone: str) -> int:
    """When the newest commit of *clone* was made, in seconds since 1970."""
    command = ["git", "-C", clone, "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
