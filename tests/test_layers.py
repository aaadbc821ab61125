"""Who may import whom: the architecture, kept as a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = {
    *("message", "errors", "channels", "peers", "presence", "bus", "session", "frames", "flows", "adapter"),
    *("inflow", "outflow", "buckets", "budget", "networks", "watchdog", "names", "bounded"),
}
STORAGE = {
    "jsontext",
    "nesting",
    "record",
    "sound",
    "modes",
    "descriptors",
    "segments",
    "layout",
    "log",
    "index",
    "lookup",
    "unapplied",
    "tables",
    "retention",
    "archive",
    "importing",
    "facts",
    "bothways",
    "compaction",
}
ACCESS = {"rights", "keyfile", "secretfile", "lastuse", "revoke", "warden", "origins"}
SHELLS = {"serve", "fast", "tls", "turns", "steps", "handover", "portable"}
NAMELESS = CORE | STORAGE | SHELLS | {"limits", "metrics", "auth", "door", "runtime", "letting"} | ACCESS
IO = {
    "anyio",
    "asyncio",
    "trio",
    "fastapi",
    "starlette",
    "websockets",
    "uvicorn",
    "socket",
    "ssl",
    "hypercorn",
    "sniffio",
}
ADAPTER_FACES = ("rest", "commands")  # an adapter's own FastAPI routers, and its part of the command
PROTOCOLS = re.compile(r"sprout|arbor|streamr|topic_relay|koshare|ethereum", re.IGNORECASE)


def modules(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")


def imports(path: Path) -> Iterator[str]:
    """The full name of everything that *path* imports when it runs, not only for its types."""
    package = path.relative_to(ROOT).parent.parts
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            yield from (f"{name}.{alias.name}" for alias in node.names)


def within(path: Path, allowed: set[str]) -> list[str]:
    """The modules of the gateway that *path* imports and *allowed* does not name."""
    names = [name.split(".")[1] for name in imports(path) if name.startswith("gateway.")]
    return [name for name in names if name not in allowed]


@pytest.mark.parametrize("path", modules("gateway"), ids=lambda path: path.stem)
def test_the_gateways_modules_keep_their_places(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    if path.stem in CORE:
        assert not within(path, CORE)
        assert tops <= {"__future__", "gateway", *__import__("sys").stdlib_module_names}, "standard library only"
    if path.stem in CORE | STORAGE:
        assert not tops & IO, "the core does no network I/O and knows no event loop"
        assert not within(path, CORE | STORAGE)
        assert "async def" not in path.read_text()
        assert "await " not in re.sub(r'"""(.|\n)*?"""', "", path.read_text())
    if path.stem in NAMELESS:
        assert "adapters" not in tops


@pytest.mark.parametrize("path", [p for p in modules("gateway") if p.stem in NAMELESS], ids=lambda path: path.stem)
def test_no_protocol_is_named_in_the_core(path: Path) -> None:
    code = re.sub(r'"""(.|\n)*?"""|#.*', "", path.read_text())
    assert not PROTOCOLS.findall(code)


@pytest.mark.parametrize("path", modules("adapters"), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_adapters_know_the_core_and_no_other_adapter(path: Path) -> None:
    names = list(imports(path))
    own = f"adapters.{path.parent.name}"
    assert not [name for name in names if name.startswith("adapters") and not name.startswith(own)]
    if not path.stem.startswith(ADAPTER_FACES):
        assert not {name.split(".")[0] for name in names} & IO
        assert not within(path, CORE | STORAGE | {"metrics", "auth"})


def test_nothing_imports_the_pipeline() -> None:
    for path in [*modules("gateway"), *modules("adapters")]:
        if path.relative_to(ROOT) != Path("gateway/commands/pipeline.py"):
            assert not [name for name in imports(path) if name.split(".")[0] == "pipeline"], path


@pytest.mark.parametrize("path", modules("pipeline"), ids=lambda path: path.stem)
def test_the_pipeline_shares_only_what_is_pure(path: Path) -> None:
    names = list(imports(path))
    if path.stem != "submit":  # the command line
        assert not within(path, {"message", "errors", "jsontext", "record", "sound", "layout", "segments", "archive"})
    shared = {"codec", "control", "errors", "forest", "message", "openpgp", "packets", "signing", "stored", "twig"}
    shared |= {"batch", "dumps", "ids"}
    assert {name.split(".")[2] for name in names if name.startswith("adapters.")} <= shared
    if path.parent.name == "transforms":
        assert not {name.split(".")[0] for name in names} & (IO | {"httpx", "pathlib", "os", "shutil"})
        assert "SparkSession" not in path.read_text()
