"""The modules of this repository: their names, what they import, and their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def paths(folder: str) -> list[Path]:
    found = (ROOT / folder).rglob("*.py")
    return sorted(path for path in found if "node_modules" not in path.parts)  # npm's packages have scripts in Python 2


def modules(folder: str) -> list[Path]:
    return [path for path in paths(folder) if path.name != "__init__.py"]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


OURS = {name_of(path): path for folder in ("gateway", "adapters", "pipeline") for path in paths(folder)}


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the module at *path*, which is parsed once; the module itself is the first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of the module at *path*, also inside others; only what holds statements is searched for them."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            if isinstance(held := getattr(node, block, None), list):
                waiting += held


@cache
def imports(path: Path, *, types: bool = False) -> frozenset[str]:
    """The full name of every module that *path* imports when it runs; with *types* also those for its types alone."""
    package = package_of(path).split(".")
    left_out = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in nodes(path):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            named = {f"{source}.{alias.name}" for alias in node.names}
            found |= {name if name in OURS or source not in OURS else source for name in named}
    return frozenset(found)


def within(name: str, *places: str) -> bool:
    """Whether the module *name* is one of *places*, or in one of them."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def strangers(path: Path, allowed: set[str], of: str = "gateway") -> list[str]:
    """The modules of the package *of* that *path* imports and that are not in *allowed*."""
    return [name for name in sorted(imports(path)) if within(name, of) and not within(name, *allowed)]


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}
