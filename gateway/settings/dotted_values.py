"""Every value of a settings model and of the models in it, by its dotted key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel


def dotted_values(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key, such as `log.keep_days`, with its value."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from dotted_values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
