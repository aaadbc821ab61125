"""Loads the configuration: a TOML file, the environment (`TRELLIS_SPROUT__PORT=7777`) and flags, which override it.

A configuration with any fault is refused, and every fault is named by its key.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.adapter import Adapter
from gateway.core.errors import OperatorError

from .dotted_values import dotted_values
from .settings import PREFIX, Settings, settings_model
from .validation import validate_settings

# Variables that are not settings: for the commands that talk to a gateway, and for the test suite.
NOT_SETTINGS = frozenset(
    {
        *("TRELLIS_URL", "TRELLIS_KEY", "TRELLIS_REMOTE_KEY"),
        *("TRELLIS_FUZZ", "TRELLIS_SOAK", "TRELLIS_REQUIRE_INTEROP"),
    }
)


class BadConfiguration(OperatorError):
    """The configuration cannot be used; `faults` has one line for each reason, with its key."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


def load(
    adapters: Collection[type[Adapter]], file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """Read the configuration; raises `BadConfiguration` with every fault.

    A file or a variable that cannot be parsed hides the faults of all values.
    """
    faults: list[str] = []
    if file is not None and not file.is_file():
        raise BadConfiguration([f"--config: {file} is not a file"])
    model = settings_model(adapters, file)
    faults += _unknown_variables(model)
    try:
        settings = model(**_nested(flags or {}))
    except ValidationError as error:
        faults += [_fault(dict(e), model) for e in error.errors()]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{file}: not valid TOML: {error}")
    except SettingsError as error:  # a variable is no JSON
        faults.append(f"environment: {error}; write JSON, or one variable for each value: {PREFIX}LIMITS__MEMORY")
    else:
        faults += validate_settings(settings, adapters)
    if faults:
        raise BadConfiguration(faults)
    return settings


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags by dotted key (`sprout.port`) as nested values; a flag of None was not given."""
    values: dict[str, Any] = {}
    for key, value in flags.items():
        if value is not None:
            *sections, name = key.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
    return values


def _unknown_variables(model: type[Settings]) -> list[str]:
    known = {name.upper() for name in model.model_fields}
    names = [name for name in os.environ if name.startswith(PREFIX) and name not in NOT_SETTINGS]
    unknown = [name for name in names if name.removeprefix(PREFIX).split("__")[0].upper() not in known]
    keys = [PREFIX + key.upper().replace(".", "__") for key in _keys(model)] if unknown else []
    return [_no_such(name, keys) for name in sorted(unknown)]


def _fault(error: dict[str, Any], model: type[Settings]) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg']}"
    return _no_such(key, _keys(model))


def _no_such(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, (key for key in known if _depth(key) == _depth(name)), 1)
    return f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _depth(name: str) -> int:
    """Return in how many tables the setting is that has this *name* in the file, or in the environment."""
    return name.count(".") + name.count("__")


def _keys(model: type[Settings]) -> set[str]:
    """Every key of *model*, and every table that has one."""
    keys = [key.split(".") for key, _ in dotted_values(model.model_construct())]
    return {".".join(key[:length]) for key in keys for length in range(1, len(key) + 1)}
