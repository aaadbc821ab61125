"""Forwarded addresses are accepted only from trusted proxies."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gateway.listeners import proxies
from gateway.listeners.proxies import TrustedProxies
from gateway.settings.config import BadConfiguration, load
from tests.gateway.operated import PROXY, Operated
from tests.waiting import until

FORWARDED = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize(("source", "network"), [("127.0.0.1", "127.0.0.1"), (PROXY, "198.51.100.7")])
def test_forwarded_headers_are_used_only_from_trusted_proxies(operated: Operated, source: str, network: str) -> None:
    since = len(operated.server.log)
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), headers=FORWARDED) as http:
        assert http.get(f"http://{operated.http}/v1/none").status_code == 404
        document = http.get(f"http://{operated.http}/asyncapi.json").text
    with connect(f"ws://{operated.http}/relay", additional_headers=FORWARDED, source_address=(source, 0)):
        until(lambda: operated.lines("connection opened", since) and operated.lines("refused", since))
    (refused,), (opened,) = operated.lines("refused", since), operated.lines("connection opened", since)
    assert (refused["network"], opened["network"]) == (network, network)
    assert ('"wss"' in document) == (source == PROXY), "the scheme is told as well"


@pytest.mark.parametrize(
    ("forwarded", "origin"),
    [
        ("", "10.0.0.1"),
        ("203.0.113.5", "203.0.113.5"),
        ("1.1.1.1, 203.0.113.5", "203.0.113.5"),  # what stands before it, anybody may have written
        ("1.1.1.1, 203.0.113.5, 10.0.0.9", "203.0.113.5"),
        ("203.0.113.5:4711", "203.0.113.5"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("unknown", "10.0.0.1"),
        ("10.0.0.3,10.0.0.2", "10.0.0.3"),
        ("203.0.113.5, unknown", "10.0.0.1"),  # who wrote what stands before it?
        ("203.0.113.5," + " " * 60_000 + "10.0.0.2", "203.0.113.5"),
        ("203.0.113.5," + "10.0.0.2," * 15 + "10.0.0.3", "10.0.0.2"),
    ],
)
def test_the_origin_is_the_last_address_that_is_no_trusted_proxy(forwarded: str, origin: str) -> None:
    trusted = TrustedProxies(("10.0.0.0/8",))
    assert trusted.origin("10.0.0.1", forwarded) == origin
    assert trusted.origin("192.0.2.1", forwarded) == "192.0.2.1", "from anybody else they mean nothing"


def test_only_the_needed_part_of_the_header_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def counting(text: str) -> Any:
        read.append(text)
        return ip_address(text)

    monkeypatch.setattr(proxies, "ip_address", counting)
    trusted = TrustedProxies(("10.0.0.0/8",))
    for forwarded in (",", "x,", "10.0.0.1,", "1.1.1.1,"):
        read.clear()
        trusted.origin("10.0.0.1", forwarded * 5_000 + "10.0.0.2")
        assert len(read) < 100
    long = "1" * 60_000
    assert trusted.origin("10.0.0.1", long) == "10.0.0.1"
    assert long not in read


def test_each_connection_of_a_proxy_counts_separately() -> None:
    trusted = TrustedProxies(("10.0.0.1", "::1"))
    assert trusted.connection("10.0.0.1", 7) != trusted.connection("10.0.0.1", 8)
    assert trusted.connection("10.0.0.2", 7) == "10.0.0.2"
    assert trusted.trusts("::ffff:10.0.0.1")
    assert not trusted.trusts("unix")


def test_an_invalid_proxy_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_TRUSTED_PROXIES", raising=False)
    with pytest.raises(BadConfiguration, match=r"trusted_proxies: .*10\.0\.0\.1/8 has host bits set"):
        load((), None, {"trusted_proxies": ("10.0.0.1/8",)})
