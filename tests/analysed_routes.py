"""Lets FastAPI analyse the handlers of routes once: it takes 60 ms for each gateway, and all have the same handlers.

The handlers of a gateway are methods of objects of its own, so only the functions below them are the same. FastAPI
keeps what it finds out about some thousand methods, and with them the gateways to which they belong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import MethodType
from typing import Any

import fastapi.routing
from fastapi.dependencies.models import Dependant

_routing: Any = fastapi.routing
_analyse = _routing.get_dependant
_yields, _yields_later = _routing._is_gen_callable, _routing._is_async_gen_callable
_LISTS = ("path_params", "query_params", "header_params", "cookie_params", "body_params", "dependencies")


@cache
def _analysed(path: str, method: Callable[..., Any], scope: Any) -> Dependant:
    found: Dependant = _analyse(path=path, call=MethodType(method, object()), scope=scope)
    return found


def _get_dependant(*, path: str, call: Callable[..., Any], scope: Any) -> Any:
    if not isinstance(call, MethodType):
        return _analyse(path=path, call=call, scope=scope)
    found = _analysed(path, call.__func__, scope)
    lists: dict[str, Any] = {name: [*getattr(found, name)] for name in _LISTS}
    return replace(found, call=call, **lists)


def _function(call: Any) -> Any:
    return call.__func__ if isinstance(call, MethodType) else call


def share() -> None:
    """From now on the analysis of a handler is kept for the handlers of other gateways."""
    _routing.get_dependant = _get_dependant
    _routing._is_gen_callable = lambda call: _yields(_function(call))
    _routing._is_async_gen_callable = lambda call: _yields_later(_function(call))
