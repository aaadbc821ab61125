"""Accepts or refuses the upgrade to a WebSocket, and runs the session of an accepted one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from fastapi import WebSocket

from gateway.adapter import Refusal
from gateway.core.errors import RequestError
from gateway.http.problems import problem_of, problem_of_status, problem_response
from gateway.listeners.admission import Acceptor, Admission

from . import portable_shell


class Admitting(Protocol):
    """A gateway; it has its *admission* once it has started."""

    admission: Admission


def websocket_endpoint(gateway: Admitting, acceptor: Acceptor) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the handler of a WebSocket route whose sessions *acceptor* makes, if *gateway* admits the client.

    A refused client gets a problem (RFC 9457) in place of the upgrade.
    """

    async def connect(websocket: WebSocket) -> None:
        address = websocket.client.host if websocket.client else ""
        headers = {name.lower(): value for name, value in websocket.headers.items()}
        secure = websocket.url.scheme == "wss"
        try:
            session = gateway.admission.admit(
                acceptor, address, websocket.url.path, dict(websocket.query_params), headers, secure=secure
            )
        except RequestError as error:  # a key needs a number, and nothing can be logged
            await websocket.send_denial_response(problem_response(problem_of(error)))
            return
        if isinstance(session, Refusal):
            await websocket.send_denial_response(problem_response(problem_of_status(session.status, session.text)))
            return
        try:
            await websocket.accept(next(iter(websocket.scope["subprotocols"]), None))
        except BaseException:
            session.receive_eof()
            raise
        await portable_shell.run_websocket(websocket, session)

    return connect
