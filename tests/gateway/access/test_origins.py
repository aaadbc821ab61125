"""Pages are admitted by their origin, and requests by the name of their host."""

from __future__ import annotations

import pytest

from gateway.access.authorization import Access
from gateway.access.origins import Origins, is_local


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        (None, "gateway.example", True),
        ("http://localhost:3000", "gateway.example", True),
        ("http://gateway.example:8080", "gateway.example:8080", True),
        ("http://gateway.example:8081", "gateway.example:8080", False),
        ("https://evil.example", "gateway.example", False),
        ("https://localhost.evil.example", "gateway.example", False),
        ("null", "gateway.example", False),
        ("http://[", "gateway.example", False),
        ("https://friend.example", "gateway.example", True),
    ],
)
def test_web_pages_of_other_origins_are_refused(origin: str | None, host: str, expected: bool) -> None:
    origins = Origins(["https://friend.example"])
    assert (origins.refusal(origin, host, keyless=True) is None) is expected


# What a gateway that only this machine reaches is called by programs and pages.
OWN_NAMES = ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "127.8.0.1", None]
OTHER_NAMES = ["evil.example:8080", "127.evil.example", "localhost.evil.example", "", "[", "[::2]:8080", "10.0.0.1"]


@pytest.mark.parametrize("host", OWN_NAMES)
def test_a_private_gateway_answers_to_local_names(host: str | None) -> None:
    assert Origins(private=True).refusal(None, host, keyless=True) is None


@pytest.mark.parametrize("host", OTHER_NAMES)
def test_dns_rebinding_is_refused_while_there_are_no_keys(host: str) -> None:
    for origin in (None, f"http://{host}"):
        refusal = Origins(private=True).refusal(origin, host, keyless=True)
        assert refusal is not None
        assert "auth.origins" in refusal
        assert Origins(private=True).refusal(origin, host, keyless=False) is None, "a page has no key"
        assert Origins().refusal(origin, host, keyless=True) is None, "others reach it by whatever name"


def test_a_configured_name_is_accepted() -> None:
    origins = Origins(["https://chat.example"], private=True)
    assert origins.refusal(None, "chat.example", keyless=True) is None
    assert origins.refusal(None, "other.example", keyless=True) is not None
    assert Origins(["*"], private=True).refusal(None, "any.example", keyless=True) is None


def test_with_a_key_any_host_name_is_accepted() -> None:
    access = Access(origins=Origins(private=True))
    assert access.origin_refusal(None, "evil.example") is not None
    access = Access(grants={"rest:anonymous": ("subscribe:*",)}, origins=Origins(private=True))
    assert access.origin_refusal(None, "evil.example") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[(name, True) for name in ("localhost", "127.0.0.1", "127.1.2.3", "::1")],
        *[(name, False) for name in ("0.0.0.0", "127.example", "10.0.0.1", "", None)],
    ],
)
def test_local_names(name: str | None, expected: bool) -> None:
    assert is_local(name) is expected
