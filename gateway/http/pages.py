"""The console and the other pages: files of the package, which every visitor gets unchanged under `/console`.

The files in `gateway/pages` are read once, when the application is made; a file that is put there is served. They hold
no data: a page asks `/v1` for everything, with the key of its user. The policy forbids inline scripts and styles,
foreign resources, frames, and (Trusted Types) turning text into markup, so hostile names and contents stay text.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from .problems import Problem, shortened
from .routing import ProblemRoute
from .unrouted import METHODS

PATH: Final = "/console"
INDEX: Final = "index.html"
FOLDER: Final = Path(__file__).parents[1] / "pages"
READING: Final = ("GET", "HEAD")  # the methods that are possible
MAX_HEADER: Final = 1_024  # bytes of a header that is a list; a longer one is ignored, as a server may do
NOT_POSSIBLE: Final = "%s is not possible here; allowed: GET, HEAD"

MEDIA_TYPES: Final = {  # of what may be served, by suffix; a file with another suffix is not
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = (  # Content Security Policy, level 3
    "default-src 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept by browsers, and asked for with its ETag: all files are of one version
    "Vary": "Accept-Encoding",
}


class StaticPage(NamedTuple):
    """A file: its media type, its ETag (RFC 9110, section 8.8.3), and its bytes plain and compressed."""

    media_type: str
    etag: str
    body: bytes
    compressed: bytes


@cache
def load(folder: Path = FOLDER) -> Mapping[str, StaticPage]:
    """Read the files in *folder* that may be served, by name; compressing them takes 20 ms, so it is done once."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in MEDIA_TYPES]
    return {path.name: _page(MEDIA_TYPES[path.suffix], path.read_bytes()) for path in paths}


def _page(media_type: str, body: bytes) -> StaticPage:
    return StaticPage(media_type, sha256(body).hexdigest()[:32], body, gzip.compress(body, mtime=0))


def router(pages: Mapping[str, StaticPage] | None = None) -> APIRouter:
    """Return the routes of *pages*, by default of all in the package."""
    found = load() if pages is None else pages
    routes = APIRouter(route_class=ProblemRoute)

    async def show(request: Request, name: str) -> Response:
        """Serve a page."""
        if request.method not in READING:
            raise Problem("method-not-allowed", NOT_POSSIBLE % request.method, {"Allow": "GET, HEAD"})
        if (page := found.get(name or INDEX)) is None:
            raise Problem("not-found", f"the console has no page {shortened(name)}; it begins at {PATH}/")
        return page_response(page, request)

    async def enter(request: Request) -> Response:
        """Redirect to the folder, so that pages can refer to each other below any prefix."""
        return redirect(request, "/")

    routes.add_api_route(PATH, enter, methods=list(READING), include_in_schema=False)
    routes.add_api_route(PATH + "/{name:path}", show, methods=METHODS, include_in_schema=False)
    return routes


def page_response(page: StaticPage, request: Request) -> Response:
    """Return the response that carries *page*, compressed if the client takes that, or 304 if the client has it."""
    small = accepts_gzip(request.headers.get("accept-encoding", ""))
    body, etag = (page.compressed, f'"{page.etag}-gzip"') if small else (page.body, f'"{page.etag}"')
    headers = HEADERS | {"ETag": etag}
    if etag in _etags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    headers |= {"Content-Length": str(len(body))} | ({"Content-Encoding": "gzip"} if small else {})
    return Response(b"" if request.method == "HEAD" else body, headers=headers, media_type=page.media_type)


def redirect(request: Request, target: str) -> Response:
    """Return a redirect from the path of *request* to *target* behind its last segment."""
    here = request.url.path.rpartition("/")[2]
    query = f"?{request.url.query}" if request.url.query else ""
    return Response(status_code=307, headers=HEADERS | {"Location": f"{here}{target}{query}", "Vary": "Accept"})


def prefers_html(accept: str) -> bool:
    """Whether the header *accept* (RFC 9110, section 12.5.1) asks for HTML by name, before JSON."""
    weights = _weights(accept)
    return weights.get("text/html", 0.0) > weights.get("application/json", 0.0)


def accepts_gzip(accepted: str) -> bool:
    """Whether the header *accepted* (RFC 9110, section 12.5.3) allows gzip by name."""
    return _weights(accepted).get("gzip", 0.0) > 0


def _weights(header: str) -> dict[str, float]:
    """Return the weight of each name in *header*; one that is not a number counts as 0."""
    found = dict[str, float]()
    for part in header.split(",") if len(header) <= MAX_HEADER else ():
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = 0.0
    return found


def _etags(header: str) -> set[str]:
    if len(header) > MAX_HEADER:
        return set()
    return {each.strip().removeprefix("W/") for each in header.split(",")}
