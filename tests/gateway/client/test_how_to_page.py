"""Every program in docs/how-to/publish-from-a-program.md runs as printed, against a real gateway."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import client
from gateway.commands.certificates import dev_cert
from tests.server import Server

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "publish-from-a-program.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PRINTED: tuple[list[str], ...] = (  # by each program, among other things
    ["published as "],
    [],
    ["connected; here are 0 others", " on rest said {'content': 'is anybody there?'}"],
    ["20.0\n20.1\n", "22.1\n"],
    ["{'celsius': 22.3}", "lobby 0 ", "weather/berlin 0 "],
    [" rest None", "peer 4711 is not in 'lobby'"],
    ["Unreachable no gateway at https://127.0.0.1:8443"],
)


def test_the_programs_of_the_page_print_the_documented_output(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other: some of them read what those before them have published."""
    monkeypatch.chdir(tmp_path)
    dev_cert(folder=tmp_path / "certs")
    for program, printed in zip(PROGRAMS, PRINTED, strict=True):
        here = program.replace("TrellisClient()", f'TrellisClient("http://{server.http}")')
        here = here.replace("http://127.0.0.1:8080", f"http://{server.http}")
        capsys.readouterr()
        exec(compile(here, str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102  # our own page
        out = capsys.readouterr().out
        assert [text for text in printed if text not in out] == [], out


def test_every_block_of_code_is_a_program() -> None:
    assert PAGE.read_text().count("\n```") == 2 * len(PROGRAMS)


def test_the_page_lists_every_error_of_the_client() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().split("| error | when |\n")[1], re.MULTILINE)
    kinds = [getattr(client, name) for name in client.__all__]
    errors = {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, client.TrellisError)}
    assert sorted([*listed, "TrellisError"]) == sorted(errors)
