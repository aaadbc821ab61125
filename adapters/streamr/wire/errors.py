"""The one error of the pure Streamr modules, and the codes an ErrorResponse may carry."""

from __future__ import annotations

from gateway.core.errors import RequestError

INVALID_REQUEST = "INVALID_REQUEST"
REQUEST_FAILED = "REQUEST_FAILED"
AUTHENTICATION_FAILED = "AUTHENTICATION_FAILED"
PERMISSION_DENIED = "PERMISSION_DENIED"
NOT_FOUND = "NOT_FOUND"
FUTURE_TIMESTAMP = "FUTURE_TIMESTAMP"
RESEND_FAILED = "RESEND_FAILED"


class StreamrError(RequestError):
    """A request that is answered by an ErrorResponse (S0, ErrorResponse); the connection lives.

    `message` and `code` go to the peer; `request_id` is that of the refused request, empty where none
    could be read.
    """

    def __init__(self, message: str, *, code: str = INVALID_REQUEST, request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.request_id = request_id
