"""The console's files have strict headers and caching, and comply with their content security policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.http import pages

PAGES = pages.load()
TEXTS = {name: page.body.decode() for name, page in PAGES.items()}


@pytest.fixture
def http(local: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=local.url, timeout=30) as client:
        yield client


def test_pages_are_served_with_a_strict_policy_and_kept_by_browsers(http: httpx.Client) -> None:
    plain = {"Accept-Encoding": "identity"}
    for name, page in PAGES.items():
        answer = http.get(f"/console/{name}", headers=plain)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, page.body, page.media_type)
        policy = answer.headers["content-security-policy"]
        assert {"default-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        same = {"If-None-Match": f'"other", W/{answer.headers["etag"]}'}
        assert http.get(f"/console/{name}", headers=plain | same).status_code == 304
    head = http.head("/console/", headers=plain)
    assert (head.content, int(head.headers["content-length"])) == (b"", len(PAGES["index.html"].body))
    small = http.get("/console/console.css", headers={"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == PAGES["console.css"].body
    assert small.headers["etag"] != http.get("/console/console.css", headers=plain).headers["etag"]


def test_an_unknown_page_is_a_problem(http: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/console/none.js", 404),
        ("GET", "/console/../settings.py", 404),
        ("GET", "/console/%2e%2e/settings.py", 404),
        ("POST", "/console/", 405),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path


def test_browsers_are_led_to_the_console_and_programs_get_json(http: httpx.Client) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    for path in ("/", "/console"):
        answer = http.get(path, headers=browser, follow_redirects=True)
        assert (answer.url.path, answer.headers["content-type"]) == ("/console/", "text/html; charset=utf-8")
    for accept in ("*/*", "application/json", "text/html;q=0.5, application/json", "text/html;q=x"):
        assert http.get("/", headers={"Accept": accept}).json()["console"] == "/console/", accept


def code_lines(text: str) -> int:
    """Count the lines of a module that are neither empty nor only a comment."""
    lines = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("//") for line in lines)


def test_pages_refer_to_existing_files_and_have_no_inline_code() -> None:
    for name, text in TEXTS.items():
        for target in re.findall(r'(?:from|import\()\s*"\./([^"]+)"|(?:src|href)="([^"#]+)"', text):
            assert "".join(target) in {*PAGES, "../help/"}, (name, target)
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), name
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text), (
                name
            )
            assert len(text.splitlines()) <= (316 if name == "trellis.js" else 250), name
            assert name != "trellis.js" or code_lines(text) <= 221


def test_a_header_that_is_a_long_list_is_ignored(http: httpx.Client) -> None:
    commas = "," * pages.MAX_HEADER
    etag = http.get("/console/console.css", headers={"Accept-Encoding": "gzip"}).headers["etag"]
    small = {"Accept-Encoding": "gzip", "If-None-Match": etag}
    assert http.get("/console/console.css", headers=small).status_code == 304
    for name in small:
        assert http.get("/console/console.css", headers=small | {name: small[name] + commas}).status_code == 200
    assert not pages.accepts_gzip("gzip" + commas)
    assert not pages.prefers_html("text/html" + commas)
