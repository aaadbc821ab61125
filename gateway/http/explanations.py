"""`GET /problems`: explains each problem that REST reports, as JSON for programs and as a page for browsers."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any

from fastapi import Path, Request, Response

from . import views
from .problem_types import PROBLEM_TYPES, uri
from .problems import Problem, shortened
from .routing import Route

CSP = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
STYLE = "body{font:1rem/1.5 system-ui;max-width:60ch;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title}</title><style>{style}</style><main><h1>{title}</h1>{body}</main></html>"
)

Code = Annotated[str, Path(description="The `code` of a problem.")]


class Explanations:
    """The handlers; they need no key, and say nothing about this gateway."""

    async def problems(self, request: Request) -> Response:
        """List every problem that REST reports, with its code, its status and what to do about it."""
        if _wants_html(request):
            items = "".join(
                f'<li><a href="{uri(code)}">{code}</a> ({kind.phrase}): {escape(kind.title)}</li>'
                for code, kind in PROBLEM_TYPES.items()
            )
            return _page("Problems", f"<ul>{items}</ul>")
        return views.json_response({"problems": [_explanation(code) for code in PROBLEM_TYPES]})

    async def problem(self, request: Request, code: Code) -> Response:
        """Explain one problem, to which its `type` leads."""
        kind = PROBLEM_TYPES.get(code)
        if kind is None:
            raise Problem("unknown-problem", f"there is no problem {shortened(code)}; GET /problems lists all of them")
        if _wants_html(request):
            text = f"<p>{escape(kind.meaning)}</p><p>{escape(kind.remedy)}</p>"
            about = f'<p>{kind.phrase}, code <code>{code}</code>. <a href="/problems">All problems</a></p>'
            return _page(kind.title, text + about)
        return views.json_response(_explanation(code))


def _explanation(code: str) -> dict[str, Any]:
    return {"type": uri(code), "code": code} | PROBLEM_TYPES[code]._asdict()


def _wants_html(request: Request) -> bool:
    """Whether the client prefers a page: browsers name text/html first, programs do not name it."""
    return "text/html" in request.headers.get("accept", "")


def _page(title: str, body: str) -> Response:
    text = PAGE.format(title=escape(title), style=STYLE, body=body)
    return Response(text, media_type="text/html", headers={"Content-Security-Policy": CSP, "Vary": "Accept"})


# fmt: off
ROUTES = [
    Route("GET", "/problems",        Explanations.problems, schema="ProblemTypes"),
    Route("GET", "/problems/{code}", Explanations.problem, schema="ProblemType"),
]
# fmt: on
