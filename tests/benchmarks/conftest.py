"""The benchmarks are part of the repository, not of the installed distribution: its folder goes on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
