"""The Content-Type of a body decides its content; curl itself shows what `-d` sends."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import httpx
import pytest

from gateway.http import media
from gateway.http.problems import Problem

LOBBY = "/v1/channels/lobby/messages"
FORM = media.FORM


def curl(url: str, *options: str, data: bytes | None = None) -> tuple[int, Any]:
    """The status and the body of what curl is answered."""
    command = ["curl", "--silent", "--max-time", "20", "--write-out", "\n%{http_code}", *options, url]
    text, _, status = subprocess.run(command, input=data, capture_output=True, check=True).stdout.rpartition(b"\n")
    return int(status), json.loads(text)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_common_curl_commands_publish_messages(local: Any) -> None:
    url = local.url + LOBBY
    assert curl(url, "-d", "hello")[0] == 201
    assert curl(url, "--data-binary", "@-", "-H", "Content-Type: text/plain", data=b"two\nlines\n")[0] == 201
    assert curl(url, "--json", '{"n": 1}')[0] == 201
    assert curl(url, "-d", '{"n": 2}')[0] == 201
    status, told = curl(url, "-d", "n=3")
    assert (status, told["code"]) == (415, "ambiguous-content")
    assert "-H 'Content-Type: text/plain'" in told["detail"]
    found = httpx.get(url).json()["messages"]
    assert [message["content"] for message in found] == ["hello", "two\nlines\n", {"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("content_type", "body", "content"),
    [
        (None, b"[1]", b"[1]"),
        ("application/json", b" 1 ", b"1"),
        ("application/json; charset=UTF-8", b"1", b"1"),
        ("application/merge-patch+json", b"{}", b"{}"),
        ("text/plain", b"1", b'"1"'),
        ('TEXT/Plain;Charset="ISO-8859-1"', b"\xe4", '"ä"'.encode()),
        ("text/plain; charset=windows-1252", b"\x80", '"€"'.encode()),
        ("text/plain; charset=utf-16", "ä".encode("utf-16"), '"ä"'.encode()),
        ("text/plain; format=flowed", b"\xef\xbb\xbfa\x00", b'"a\\u0000"'),
        ("text/plain", b"", b'""'),
        (FORM, b' {"a=b": "50%25"} ', b'{"a=b": "50%25"}'),
        (FORM, b"42", b"42"),
        (FORM, b"hello + more & 100%", b'"hello + more & 100%"'),
        (f"{FORM}; charset=iso-8859-1", b"\xe4", '"ä"'.encode()),
    ],
)
def test_a_body_becomes_content(content_type: str | None, body: bytes, content: bytes) -> None:
    assert media.content_reader(content_type)(body) == (content, None)


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"hello", "malformed-content"),
        ("application/json; charset=iso-8859-1", b"1", "unsupported-charset"),
        ("text/plain", b"\xff", "malformed-content"),
        ("text/plain; charset=utf-16", b"\x00\xd8", "malformed-content"),
        ("text/plain; charset=idna", b"a", "unsupported-charset"),
        ("text/plain; charset=rot13", b"a", "unsupported-charset"),
        ("text/plain; charset=utf-8; charset=utf-8", b"a", "unsupported-charset"),
        ("text/plain", b"\x01" * 200_000, "content-too-long"),
        ("text/html", b"<p>", "unsupported-media-type"),
        ("multipart/form-data; boundary=x", b"", "unsupported-media-type"),
        (FORM, b"text=hello", "ambiguous-content"),
        (FORM, b"hello%20world", "ambiguous-content"),
        (FORM, b'{"text": "hello', "malformed-content"),
    ],
)
def test_malformed_bodies_are_refused(content_type: str, body: bytes, code: str) -> None:
    with pytest.raises(Problem) as caught:
        media.content_reader(content_type)(body)
    assert caught.value.code == code


def test_direct_messages_take_text_too_and_the_type_is_checked_after_the_right(local: Any) -> None:
    with httpx.Client(base_url=local.url, timeout=20) as http:
        with http.stream("GET", "/v1/channels/lobby/events") as response:
            received = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            number = json.loads(next(received))["number"]
            path = f"/v1/channels/lobby/peers/{number}/messages"
            sent = http.post(path, content="psst", headers={"Content-Type": "text/plain"})
            assert sent.status_code == 202
            assert json.loads(next(received))["content"] == "psst"
        refused = http.post(LOBBY, content="x", headers={"Content-Type": "image/png"})
        assert (refused.status_code, refused.headers["accept-post"]) == (415, media.ACCEPTED["Accept-Post"])
        image = {"Content-Type": "image/png"}
        assert http.post("/v1/channels/a%2F%40b/messages", content="x", headers=image).status_code == 404
