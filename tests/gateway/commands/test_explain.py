"""`trellis explain` gives the verdict of the gateway, and names the rule that decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.access.authorization import Access, ApiKey, Right, digest
from gateway.access.keyfile import KeyFile, now_ms
from gateway.cli import app
from gateway.core.principal import Principal
from tests.server import Server

ALICE = "streamr:0x" + "a" * 40
CONFIGURATION = f"""
[auth.grants]
"streamr:anonymous" = ["subscribe:*", "!*:secret/*"]
"{ALICE}" = ["publish:secret/a"]
[streamr.streams]
"secret/open" = {{ public = true }}
"open" = {{ public = true }}
"""


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "data" / "keys" / "api-keys.json")
    file.add("ada", ("*:*", "!publish:secret/*"))
    file.add("old", expires=now_ms() - 1)
    return file


@pytest.fixture
def explain(tmp_path: Path, keys: KeyFile) -> Callable[..., tuple[int, str]]:  # noqa: ARG001  # they are looked at
    config = tmp_path / "trellis.toml"
    config.write_text(CONFIGURATION)

    def run(*asked: str) -> tuple[int, str]:
        flags = ("--data", str(tmp_path / "data"), "--config", str(config))
        done = CliRunner().invoke(app, ["explain", *asked, *flags])
        return done.exit_code, done.stdout.strip()

    return run


# fmt: off
ANSWERS = [
    (("key:ada", "publish", "lobby"),              0, "yes: *:* of the key 'ada'"),
    (("key:ada", "publish", "secret/a"),           1, "no: !publish:secret/* of the key 'ada'"),
    (("key:ada", "admin", ""),                     1, "no: no rule of key:ada covers it"),
    (("key:ada", "publish", "gateway/x"),          1, "no: no rule of key:ada covers it (publish needs admin here)"),
    (("key:old", "publish", "lobby"),              1, "no: the key 'old' has expired"),
    ((ALICE, "publish", "secret/a"),               0, f"yes: publish:secret/a of auth.grants '{ALICE}'"),
    ((ALICE, "subscribe", "lobby"),                0, "yes: subscribe:* of auth.grants 'streamr:anonymous'"),
    ((ALICE, "history", "open"),                   0, "yes: history:open of the rights given to 'streamr:anonymous'"),
    ((ALICE, "history", "secret/open"),            1, "no: !*:secret/* of auth.grants 'streamr:anonymous'"),
    (("sprout:anonymous", "subscribe", "lobby"),   1, "no: no rule of sprout:anonymous covers it"),
]
WRONG = [("key:nobody", "publish", "x"), ("smtp:anonymous", "publish", "x"), ("key:ada", "shout", "x"),
         ("key:ada", "publish", "a/@b"), ("streamr:0xAB", "publish", "x")]
# fmt: on


@pytest.mark.parametrize(("asked", "code", "said"), ANSWERS)
def test_explain_prints_the_deciding_rule(
    explain: Callable[..., tuple[int, str]], asked: tuple[str, ...], code: int, said: str
) -> None:
    assert explain(*asked) == (code, said)


@pytest.mark.parametrize("asked", WRONG)
def test_invalid_arguments_exit_with_2(explain: Callable[..., tuple[int, str]], asked: tuple[str, ...]) -> None:
    assert explain(*asked) == (2, "")


def test_explain_reports_that_there_are_no_keys_and_grants(tmp_path: Path) -> None:
    for verb, code in (("publish", 0), ("admin", 1)):
        done = CliRunner().invoke(app, ["explain", "rest:anonymous", verb, "x", "--data", str(tmp_path)])
        assert done.exit_code == code
        assert "no key and no grant" in done.stdout
    assert list(tmp_path.iterdir()) == [], "it changes nothing"


def test_rights_given_by_users_are_found_with_and_without_a_running_gateway(tmp_path: Path) -> None:
    data = tmp_path / "data"
    secret = KeyFile(data / "keys" / "api-keys.json").add("ada", ("*:*", "admin:*"))
    with Server(data) as server:
        headers = {"Authorization": f"Bearer {secret}"}
        url = f"http://{server.http}/api/v1/streams"
        assert httpx.post(url, json={"id": "s"}, headers=headers).is_success
        body = {"operation": "stream_publish", "user": ALICE.partition(":")[2]}
        assert httpx.post(f"{url}/s/permissions", json=body, headers=headers).is_success
        asked = ["explain", ALICE, "publish", "s", "--data", str(data)]
        running = CliRunner().invoke(app, asked)
        assert secret not in running.output
    stopped = CliRunner().invoke(app, asked)
    assert stopped.exit_code == 0, stopped.output
    assert "the rights given to" in stopped.stdout
    assert running.stdout in (stopped.stdout, f"no: no rule of {ALICE} covers it\n"), "the index may be a moment behind"


def test_the_verdict_equals_that_of_the_access_check() -> None:
    access = Access([ApiKey("k", digest("s"), ("*:a*", "!publish:ab"))], grants={"toy:anonymous": ("subscribe:*",)})
    access.set_given_rights("toy:x", [Right("publish", "ab")])
    k = access.authenticate("toy", "s")
    assert k is not None
    for principal in (k, Principal("toy:x"), Principal("toy:anonymous"), Principal("key:k")):
        for verb in ("subscribe", "publish", "admin"):
            for channel in ("", "a", "ab", "b", "gateway/x"):
                asked: Any = (principal, verb, channel)
                assert access.explain(*asked).allowed == access.allowed(*asked), asked


def test_a_bare_key_name_is_corrected_in_the_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["explain", "ada", "publish", "lobby", "--data", str(tmp_path)])
    assert "the key called ada is key:ada" in " ".join(done.stderr.split())
