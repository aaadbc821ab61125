"""Invalid configurations are refused as a whole, with the key and the reason."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adapters import ADAPTERS
from gateway.settings import config, validation

# fmt: off
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"auth.grants": {"smtp:anonymous": ["*:*"]}},                            "'smtp:anonymous' is not a principal"),
    ({"auth.grants": {"key:ada": ["*:*"]}},                                   "trellis key add --allow"),
    ({"auth.grants": {"streamr:0x" + "AB" * 20: ["*:*"]}},                    "lower case"),
    ({"auth.grants": {"streamr:alice": ["*:*"]}},                             "'streamr:alice' is not a principal"),
    ({"auth.grants": {"rest:alice": ["*:*"]}},                                "'rest:alice' is not a principal"),
    ({"auth.grants": {"rest:anonymous": ["publish:a/@b"]}},                   "matches no channel"),
    ({"auth.grants": {"rest:anonymous": ["publish"]}},                        "VERB:PATTERN"),
    ({"auth.grants": {"anonymous": ["admin:*"]}, "host": "0.0.0.0"},          "anybody who reaches 0.0.0.0"),
    ({"auth.origins": ["chat.example"]},                                      "is not an origin"),
    ({"auth.origins": ["https://chat.example/"]},                             "is not an origin"),
    ({"port": 7777, "sprout.port": 7777},                                     "port, sprout.port: they cannot share"),
    ({"limits.handshake_seconds": float("inf")},                              "limits.handshake_seconds: inf"),
    ({"log.keep_days": float("inf")},                                         "log.keep_days: inf"),
    ({"limits.address": {"rate": float("nan"), "burst": 1}},                  "limits.address.rate"),
    ({"limits.connections": -1},                                              "limits.connections"),
    ({"log.keep_bytes": 1000},                                                "log.keep_bytes: 1000 is less than"),
]
TAKEN: list[dict[str, Any]] = [
    {"auth.grants": {"anonymous": ["*:*"], "sprout:peer": ["*:*"], "sprout:SHA512_B32__AbC-_": ["*:x"]}},
    {"auth.grants": {"anonymous": ["admin:*"]}, "host": "0.0.0.0", "open_to_all": True},
    {"auth.grants": {"anonymous": ["admin:*"]}},
    {"auth.grants": {"anonymous": ["!admin:*", "*:*"]}, "host": "0.0.0.0"},
    {"auth.origins": ["*", "https://chat.example:8443", "http://localhost"]},
    {"port": 0, "sprout.port": 0, "sprout.tls_port": 0},
]
# fmt: on


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_a_dangerous_configuration_is_refused_with_its_reason(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(config.BadConfiguration, match=r".") as refused:
        config.load(ADAPTERS, None, flags)
    assert reason in str(refused.value)
    assert len(refused.value.faults) == 1


@pytest.mark.parametrize("flags", TAKEN)
def test_configurations_that_only_look_dangerous_are_accepted(flags: dict[str, Any]) -> None:
    config.load(ADAPTERS, None, flags)


def test_the_error_names_the_cluster_dependency_as_pip_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index has `trellis-gateway`, so its extras cannot be asked for by name."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cluster"] == [validation.NATS_CLIENT]
    monkeypatch.setattr(validation, "find_spec", lambda _name: None)
    with pytest.raises(config.BadConfiguration, match=re.escape(f"-m pip install '{validation.NATS_CLIENT}'")):
        config.load(ADAPTERS, None, {"cluster.url": ["nats://127.0.0.1:4222"], "cluster.gateway": "one"})


def test_a_world_readable_certificate_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("no key at all")
    key.chmod(0o644)
    with pytest.raises(config.BadConfiguration, match="read or changed by everybody"):
        config.load(ADAPTERS, None, {"tls_cert": key, "tls_key": key})


def test_a_name_that_is_nearly_that_of_a_setting_is_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "trellis.toml").write_text(
        "prt = 1\nnonsense = 1\n[sprout]\nprot = 2\n[limits.adress]\nrate = 3\n"
    )
    monkeypatch.setenv("TRELLIS_SPRUT__PORT", "7000")
    with pytest.raises(config.BadConfiguration, match=r".") as refused:
        config.load(ADAPTERS, file)
    assert sorted(refused.value.faults) == [
        "TRELLIS_SPRUT__PORT: no such setting; did you mean TRELLIS_SPROUT__PORT?",
        "limits.adress: no such setting; did you mean limits.address?",
        "nonsense: no such setting",
        "prt: no such setting; did you mean port?",
        "sprout.prot: no such setting; did you mean sprout.port?",
    ]


@pytest.mark.parametrize("text", [b"port = ", b'host = "\xff"'])
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, text: bytes) -> None:
    (file := tmp_path / "trellis.toml").write_bytes(text)
    with pytest.raises(config.BadConfiguration, match=re.escape(f"{file}: not valid TOML: ")):
        config.load(ADAPTERS, file)


def test_a_variable_that_cannot_be_parsed_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "trellis.toml").touch()
    monkeypatch.setenv("TRELLIS_CHANNELS", "{bad")
    with pytest.raises(config.BadConfiguration, match=r'^environment: .*"channels".*; write JSON, or one variable for'):
        config.load(ADAPTERS, file)
