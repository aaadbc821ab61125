"""The documentation at `/help` has every page in a frame with the shelves, and no broken link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from posixpath import join, normpath
from typing import Any

import httpx
import pytest

from gateway.help.manual import Manual
from gateway.help.markup import address_of, file_of, render

DOCS = Path(__file__).parents[3] / "docs"
FILES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
ADDRESSES = [address_of(file) for file in FILES]


@pytest.fixture(scope="module")
def manual() -> Manual:
    return Manual()


@pytest.fixture
def http(local: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=local.url, timeout=30) as client:
        yield client


@pytest.mark.slow
def test_every_page_picture_and_link_is_served_and_nothing_is_loaded_from_elsewhere(http: httpx.Client) -> None:
    """All of them, because what a page links to is known only when it has been rendered."""
    texts, seen = {}, set[str]()
    waiting = ["", *ADDRESSES]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        answer = http.get(f"/help/{name}")
        assert answer.status_code == 200, name
        policy = answer.headers["content-security-policy"]
        assert {"default-src 'none'", "sandbox"} & set(policy.split("; "))
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        assert "unsafe" not in policy
        assert "script" not in policy
        texts[name] = answer.text
        assert not re.search(r"<script|\sstyle=|\son\w+=", answer.text), name
        loaded = re.findall(r'(?:\ssrc|<link[^>]* href)="([^"]+)"', answer.text)
        assert not [target for target in loaded if ":" in target], name
        for target in [*loaded, *links(answer.text)]:
            path = normpath(join(name.rpartition("/")[0], target.partition("#")[0])) if target[0] != "#" else name
            if "console" not in path:
                waiting.append("" if path == "." else path)
    assert set(ADDRESSES) <= texts.keys()
    for name, text in texts.items():
        for target in links(text):
            path, _, anchor = target.partition("#")
            there = normpath(join(name.rpartition("/")[0], path)) if path else name
            assert not anchor or f'id="{anchor}"' in texts[there], (name, target)


def links(text: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'<a [^>]*href="([^"]+)"', text) if "://" not in found]


def test_each_page_shows_the_shelves_and_marks_itself(http: httpx.Client) -> None:
    text = http.get("/help/how-to/monitor.html").text
    for shelf in ("Tutorial", "How-to", "Reference", "Explanation"):
        assert f"<h2>{shelf}</h2>" in text
    assert '<a href="../how-to/monitor.html" aria-current="page">Monitor</a>' in text
    assert "<title>Monitor · Trellis</title>" in text
    assert "<!--" not in text.split("<article>")[1]


def test_search_finds_pages_and_escapes_the_query(http: httpx.Client) -> None:
    found = http.get("/help/search.html", params={"q": "webhook attempts"}).text
    assert found.index('href="how-to/webhooks.html"') < found.index('href="configuration.html"')
    hostile = http.get("/help/search.html", params={"q": '"><img src=x>'}).text
    assert "<img" not in hostile
    assert "0 pages with “&quot;&gt;&lt;img src=x&gt;”" in hostile
    assert "Nothing to search" in http.get("/help/search.html").text


def test_an_excerpt_begins_and_ends_with_whole_words(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(200)]
    (tmp_path / "README.md").write_text("# Title\n" + "\n".join(words))
    for wanted in ("word0", "word100", "word199"):
        (hit,) = Manual(tmp_path).search(wanted)
        shown = hit.excerpt.removeprefix("… ").removesuffix(" …").split(" ")
        assert wanted in shown
        assert words[words.index(shown[0]) :][: len(shown)] == shown
        assert hit.excerpt.startswith("…") == (shown[0] != words[0])
        assert hit.excerpt.endswith("…") == (shown[-1] != words[-1])
        assert len(hit.excerpt) < 180


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("GET /v1/channels/{channel}", "GET /v1/<wbr>channels/<wbr>{channel}"),
        ('{"type":1,"topic":"a, b"}', "{&quot;type&quot;:1,<wbr>&quot;topic&quot;:&quot;a, b&quot;}"),
        ("ws://127.0.0.1:8080/relay", "ws://127.0.0.1:8080/<wbr>relay"),
        ("<a,b>", "&lt;a,b&gt;"),
    ],
)
def test_long_code_may_continue_on_the_next_line(code: str, shown: str) -> None:
    assert f"<code>{shown}</code>" in render(f"x `{code}`").html


def test_nothing_else_is_served_and_the_folder_is_found_without_its_slash(http: httpx.Client) -> None:
    for name in ("nothing.html", "../pyproject.toml", "%2e%2e/pyproject.toml", "how-to", "docs", "a//b"):
        missing = http.get(f"/help/{name}")
        assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    answer = http.get("/help")
    assert (answer.status_code, answer.headers["location"]) == (307, "help/")
    head = http.head("/help/", headers={"Accept-Encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 1000


def test_a_page_is_found_by_its_address(manual: Manual) -> None:
    assert [file_of(address) for address in ADDRESSES] == FILES
    assert file_of("") == "README.md"
    assert file_of("decisions/") == "decisions/README.md"
    assert manual.page("performance/rest.svg") is None


def test_markdown_is_rendered_as_html_within_the_policy() -> None:
    page = render(
        "# A `title`\n\n## Same\n\n## Same\n\n<!-- run -->\n```sh\nls <x>\n```\n\n"
        "| a | b |\n|---|---:|\n| [to](x/README.md#y) | [out](https://example.com/a.md) |\n"
    )
    assert (page.title, [heading.id for heading in page.headings]) == ("A title", ["same", "same-1"])
    assert '<h2 id="same-1">' in page.html
    assert "<!--" not in page.html
    assert "ls &lt;x&gt;" in page.html
    assert '<td class="right"><a href="https://example.com/a.md">' in page.html
    assert 'href="x/index.html#y"' in page.html
