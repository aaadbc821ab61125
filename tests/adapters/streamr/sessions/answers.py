"""What a broker answers, taken apart."""

from __future__ import annotations

from typing import Any

FAILED = "REQUEST_FAILED"


def error(answers: list[Any]) -> tuple[str, str]:
    """The text and the code of the one answer, an ErrorResponse."""
    ((version, kind, _request, text, code),) = answers
    assert (version, kind) == (2, 7)
    return text, code


def contents(toy: Any) -> list[bytes]:
    """What a toy heard said since the last time."""
    return [heard for heard in toy.take() if isinstance(heard, bytes)]
