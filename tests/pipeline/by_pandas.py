"""Compares the tables of two warehouses by pandas, in a Python that has it: WAREHOUSE REFERENCE TABLE..."""

from __future__ import annotations

import json
import sys
from typing import Any

from deltalake import DeltaTable
from pandas.testing import assert_frame_equal

STORE = {"allow_http": "true"}


def rows(warehouse: str, name: str) -> Any:
    """The rows of a table in an order of their own, without the time at which they were verified."""
    frame = DeltaTable(f"{warehouse}/{name}", storage_options=STORE).to_pandas()
    frame = frame.drop(columns=["checked_at"], errors="ignore")
    keys = [json.dumps(row, default=plain) for row in frame.itertuples(index=False, name=None)]
    return frame.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def plain(value: Any) -> Any:
    """*value* as JSON has it: arrays as lists, all of their items; bytes, times and decimals as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


for name in sys.argv[3:]:
    found, other = rows(sys.argv[1], name), rows(sys.argv[2], name)
    assert_frame_equal(found, other)
    sys.stdout.write(f"{name}\n")
