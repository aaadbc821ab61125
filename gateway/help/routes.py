"""`/help`: the pages of the documentation in a frame with the four shelves. No script runs there.

Everybody may read them, as the pages of the console: they are the same for every gateway.
"""

from __future__ import annotations

import gzip
from functools import cache, partial
from html import escape
from pathlib import Path
from posixpath import relpath
from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from gateway.http.callers import admit_request
from gateway.http.pages import HEADERS, accepts_gzip, redirect
from gateway.http.problems import Problem, shortened
from gateway.http.routing import ProblemRoute
from gateway.http.thread_queue import ThreadQueue

from .manual import Manual
from .markup import Document, address_of, file_of

PATH: Final = "/help"
SEARCH: Final = "search.html"
STYLE: Final = "help.css"
MAX_WORDS: Final = 200  # characters of what is searched for
SEARCH_COST: Final = 20  # requests that a search counts as: it takes up to 50 ms of CPU time
MAX_WAITING: Final = 32  # searches that wait for the one under way
HTML: Final = "text/html; charset=utf-8"
CSS: Final = "text/css; charset=utf-8"
SVG: Final = "image/svg+xml"
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PICTURE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # the pictures' own styles


packaged: Final = cache(Manual)  # the pages in the package, which all gateways of a process share


def router(manual: Manual | None = None) -> APIRouter:
    """Return the routes of *manual*, by default the one in the package; /openapi.json does not list them."""
    pages = packaged() if manual is None else manual
    style = (Path(__file__).parent / STYLE).read_bytes()
    routes = APIRouter(route_class=ProblemRoute, include_in_schema=False)
    searches = ThreadQueue(MAX_WAITING)

    async def enter(request: Request) -> Response:
        """Redirect to the folder, so that links work below any prefix."""
        return redirect(request, "/")

    async def show(request: Request, name: str) -> Response:
        """Serve a page, a picture, or the style sheet."""
        if name == STYLE:
            return _response(request, style, CSS, PAGE_POLICY)
        if name == SEARCH:
            words = request.query_params.get("q", "")[:MAX_WORDS]
            gateway = request.app.state.gateway
            network = admit_request(gateway, request)
            gateway.charge(network, SEARCH_COST)
            text = await searches.run(gateway, network, partial(search_page, pages, words))
            return _response(request, text.encode(), HTML, PAGE_POLICY)
        if (picture := await to_thread.run_sync(pages.picture, name)) is not None:
            return _response(request, picture, SVG, PICTURE_POLICY)
        if (found := await to_thread.run_sync(partial(page, pages, name))) is None:
            raise Problem("not-found", f"the documentation has no page {shortened(name)}; it begins at {PATH}/")
        return _response(request, found.encode(), HTML, PAGE_POLICY)

    routes.add_api_route(PATH, enter, methods=["GET", "HEAD"])
    routes.add_api_route(PATH + "/{name:path}", show, methods=["GET", "HEAD"])
    return routes


def _response(request: Request, body: bytes, media_type: str, policy: str) -> Response:
    headers = HEADERS | {"Content-Security-Policy": policy}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        body = gzip.compress(body, compresslevel=5, mtime=0)
        headers |= {"Content-Encoding": "gzip"}
    headers |= {"Content-Length": str(len(body))}
    return Response(b"" if request.method == "HEAD" else body, headers=headers, media_type=media_type)


def page(manual: Manual, name: str) -> str | None:
    """Return the HTML of the page that is served as *name*, or None if there is none."""
    file = file_of(name)
    if (document := manual.page(file)) is None:
        return None
    return frame(manual, file, document, f"<article>{document.html}</article>{_contents(document)}")


def search_page(manual: Manual, words: str) -> str:
    """Return the HTML of the pages that have all *words*."""
    hits = manual.search(words)
    rows = "".join(
        f'<li><a href="{escape(hit.address)}">{escape(hit.title)}</a><p>{escape(hit.excerpt)}</p></li>' for hit in hits
    )
    found = f"{len(hits)} page{'' if len(hits) == 1 else 's'} with “{escape(words)}”" if words else "Nothing to search"
    document = Document("Search", (), "", "")
    return frame(
        manual, SEARCH, document, f'<article><h1>Search</h1><p>{found}</p><ul class="hits">{rows}</ul></article>'
    )


def frame(manual: Manual, file: str, document: Document, main: str) -> str:
    """Return a whole page: *main* beside the shelves; links are relative to the folder of *file*."""
    home = relpath(".", file.rpartition("/")[0] or ".") + "/"
    links = "".join(
        f"<h2>{escape(shelf.name)}</h2><ul>{''.join(_entry(home, file, *entry) for entry in shelf.entries)}</ul>"
        for shelf in manual.shelves
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)} · Trellis</title>"
        f'<link rel="stylesheet" href="{home}{STYLE}"></head><body><a class="skip" href="#main">Skip to the content</a>'
        f'<header><a class="brand" href="{home}">Trellis: documentation</a><a href="{home}../console/">Console</a>'
        f'<form role="search" action="{home}{SEARCH}"><input type="search" name="q" aria-label="Search" '
        f'placeholder="Search"></form></header><nav aria-label="Shelves">{links}</nav>'
        f'<main id="main">{main}</main></body></html>\n'
    )


def _entry(home: str, here: str, title: str, file: str) -> str:
    current = ' aria-current="page"' if file == here else ""
    return f'<li><a href="{home}{escape(address_of(file))}"{current}>{escape(title)}</a></li>'


def _contents(document: Document) -> str:
    """Return links to the sections of a page that has several."""
    sections = [heading for heading in document.headings if heading.level == 2]
    if len(sections) < 3:
        return ""
    rows = "".join(f'<li><a href="#{escape(each.id)}">{escape(each.text)}</a></li>' for each in sections)
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2><ul>{rows}</ul></nav>'
