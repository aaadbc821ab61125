"""`make audit` matches advisories with the versions in the locks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit import affects, compare, pins

ROOT = Path(__file__).parents[1]


def advisory(*events: dict[str, str], versions: tuple[str, ...] = (), kind: str = "ECOSYSTEM") -> dict[str, Any]:
    place = {"package": {"name": "Some.Package"}, "ranges": [{"type": kind, "events": events}], "versions": versions}
    return {"id": "PYSEC-0", "affected": [place]}


SINCE_2 = ({"introduced": "0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"last_affected": "2.10"})


@pytest.mark.parametrize(
    ("version", "said", "expected"),
    [
        ("1.4", advisory(*SINCE_2), True),
        ("1.5", advisory(*SINCE_2), False),
        ("2.9", advisory(*SINCE_2), True),
        ("2.10", advisory(*SINCE_2), True),
        ("2.11", advisory(*SINCE_2), False),
        ("3.0", advisory({"introduced": "2.0"}), True),
        ("3.0", advisory({"introduced": "2.0"}, kind="GIT"), False),
        ("3.0", advisory(versions=("3.0",)), True),
        ("3.0", advisory({"introduced": "0"}) | {"withdrawn": "2026-01-01T00:00:00Z"}, False),
    ],
)
def test_an_advisory_is_about_its_versions(version: str, said: dict[str, Any], expected: bool) -> None:
    assert affects(said, "some-package", version) is expected
    assert not affects(said, "another", version)


def test_the_locks_are_compared_with_a_database(tmp_path: Path) -> None:
    pinned = pins(ROOT.glob("requirements*.lock"))
    assert {"anyio", "httpx", "setuptools", "nats-py"} <= pinned.keys()
    folder = tmp_path / "vulns" / "anyio"
    folder.mkdir(parents=True)
    (version,) = pinned["anyio"]
    (folder / "PYSEC-1.yaml").write_text(
        f"id: PYSEC-1\naffected:\n- package: {{name: anyio}}\n  versions: ['{version}']\n"
    )
    found = compare(tmp_path, pinned)
    assert found.advisories == {f"anyio {version}": ["PYSEC-1"]}
    assert found.known == set(pinned)
