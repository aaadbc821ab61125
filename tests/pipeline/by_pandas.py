"""Compares the tables of two warehouses by pandas, in a Python that has it: WAREHOUSE REFERENCE TABLE..."""

from __future__ import annotations

import sys
from typing import Any

from deltalake import DeltaTable
from pandas.testing import assert_frame_equal

STORE = {"allow_http": "true"}


def rows(warehouse: str, name: str) -> Any:
    """The rows of a table in an order of their own, without the time at which they were verified."""
    frame = DeltaTable(f"{warehouse}/{name}", storage_options=STORE).to_pandas()
    frame = frame.drop(columns=["checked_at"], errors="ignore")
    return frame.iloc[frame.astype(str).agg("|".join, axis=1).argsort()].reset_index(drop=True)


for name in sys.argv[3:]:
    found, other = rows(sys.argv[1], name), rows(sys.argv[2], name)
    assert_frame_equal(found, other)
    sys.stdout.write(f"{name}\n")
