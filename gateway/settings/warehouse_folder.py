"""Where the pipeline's tables are by default, for `serve` and `pipeline` alike."""

from __future__ import annotations

from typing import Final

WAREHOUSE: Final = "warehouse"  # a directory
