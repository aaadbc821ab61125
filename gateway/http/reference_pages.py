"""`/docs` and `/redoc`: Swagger UI and ReDoc of the OpenAPI document, with every script and style served from here.

The package fastapi-offline carries the scripts; only its files are used. The Content-Security-Policy allows scripts
from this gateway alone, so nothing of a message or a name that were shown here could run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import FileResponse

from gateway.core.jsontext import dumps

from .problems import Problem, shortened
from .routing import ProblemRoute

ASSETS: Final = {  # those that are served, and their media types
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
    "favicon.png": "image/png",
}
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; worker-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
START_SWAGGER: Final = (
    'SwaggerUIBundle({url: "/openapi.json", dom_id: "#main", deepLinking: true, persistAuthorization: false,'
    " presets: [SwaggerUIBundle.presets.apis]});\n"
)
START_REDOC: Final = 'Redoc.init("/openapi.json", {hideDownloadButton: false}, document.getElementById("main"));\n'
SCRIPTS: Final = {"start-swagger.js": START_SWAGGER, "start-redoc.js": START_REDOC}
PREPARE_SECONDS: Final = 2.0  # after the start
CACHE: Final = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}


class ReferencePage(NamedTuple):
    """A page: its title, and the assets that it loads."""

    title: str
    scripts: tuple[str, ...]
    style: str = ""


PAGES: Final = {
    "/docs": ReferencePage("Trellis: REST", ("swagger-ui-bundle.js", "start-swagger.js"), "swagger-ui.css"),
    "/redoc": ReferencePage("Trellis: REST reference", ("redoc.standalone.js", "start-redoc.js")),
}


def html(page: ReferencePage) -> str:
    """Return the text of *page*."""
    style = f'<link rel="stylesheet" href="/docs/assets/{page.style}">' if page.style else ""
    scripts = "".join(f'<script src="/docs/assets/{name}"></script>' for name in page.scripts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{page.title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="/docs/assets/favicon.png">{style}<main id="main"></main>{scripts}</html>\n'
    )


def _folder() -> Path:
    """Return the folder of the package that has the assets, without importing it."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"


class OpenApiText:
    """The text of the OpenAPI document, made once. It does not change while the gateway runs."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._text: bytes | None = None
        self._making = anyio.Lock()

    async def get(self) -> bytes:
        """Return the text; a thread makes it, since that takes 0.1 s."""
        async with self._making:
            if self._text is None:
                self._text = await anyio.to_thread.run_sync(lambda: dumps(self._app.openapi()))
        return self._text

    async def prepare(self) -> None:
        """Make the text soon after the start: the thread takes the interpreter from peers, who are few then."""
        await anyio.sleep(PREPARE_SECONDS)
        await self.get()


def router(document: OpenApiText) -> APIRouter:
    """Return the routes; /openapi.json does not list them."""
    routes, folder = APIRouter(route_class=ProblemRoute, include_in_schema=False), _folder()

    @routes.get("/docs/assets/{name}")
    async def asset(name: str) -> Response:
        if name in SCRIPTS:
            return Response(SCRIPTS[name], media_type="text/javascript", headers=CACHE)
        if name not in ASSETS:
            raise Problem("not-found", f"there is no {shortened(name)} here; GET /docs shows the page")
        return FileResponse(folder / name, media_type=ASSETS[name], headers=CACHE)

    @routes.get("/openapi.json")
    async def openapi() -> Response:
        return Response(await document.get(), media_type="application/json")

    async def show(request: Request) -> Response:
        text = html(PAGES[request.url.path])
        return Response(text, media_type="text/html", headers={"Content-Security-Policy": CSP})

    for path in PAGES:
        routes.add_api_route(path, show, methods=["GET", "HEAD"])
    return routes
