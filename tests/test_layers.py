"""Imports follow the architecture: folders are the layers."""

from __future__ import annotations

import ast
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from gateway.storage.index_schema import SCHEMA
from tests.modules import OURS, ROOT, imports, modules, name_of, nodes, paths, strangers, tops, within

# What a module of the gateway may import of the gateway when it runs, beside its own folder: folders, and single
# modules. What is not named here is put together from everything: the commands, and what is in no folder.
CORE = {"gateway.core"}
STORAGE = CORE | {"gateway.storage"}
DIRECTORIES = {"gateway.system.directories"}  # needs nothing of the gateway
MAY = {
    "gateway.core": set[str](),
    "gateway.adapter": CORE,
    "gateway.link_channels": CORE,
    "gateway.storage": CORE | DIRECTORIES,
    "gateway.access": CORE | DIRECTORIES | {"gateway.settings"},
    "gateway.http": STORAGE | {"gateway.access", "gateway.adapter", "gateway.reconciliation", "gateway.runtime"},
    "gateway.help": {"gateway.http"},
    "gateway.webhooks": STORAGE | {"gateway.access", "gateway.http", "gateway.runtime", "gateway.settings"},
    "gateway.shells": CORE | {"gateway.http", "gateway.adapter", "gateway.listeners"},
    "gateway.client": set[str](),
    "gateway.demo_clients": {"gateway.client"},
    "gateway.backup": STORAGE | DIRECTORIES,
    "gateway.cluster": STORAGE,
    "gateway.jetstream": {"gateway.core.errors"},
    "gateway.listeners": CORE
    | {
        "gateway.access",
        "gateway.adapter",
        "gateway.monitoring.metrics",
        "gateway.settings.limits",
        "gateway.settings.settings",
        "gateway.system",
    },
    "gateway.membership": STORAGE
    | {"gateway.access", "gateway.adapter", "gateway.cluster", "gateway.jetstream"}
    | {"gateway.monitoring.metrics", "gateway.settings", "gateway.shells.links"},
    "gateway.monitoring": STORAGE | {"gateway.settings", "gateway.system"},
    "gateway.reconciliation": STORAGE,
    "gateway.settings": STORAGE | {"gateway.access", "gateway.adapter", "gateway.listeners", "gateway.system"},
    "gateway.system": CORE,
}
SYNCHRONOUS = (
    "gateway.core",
    "gateway.storage",
    "gateway.cluster",
    "gateway.reconciliation",
    "gateway.adapter",
)  # no await, no network, no event loop
LIBRARIES = {  # which the core needs beside the standard library
    "gateway.core.jsontext": {"msgspec", "orjson"},
    "gateway.core.message": {"msgspec"},
}
# Modules that name a bridged protocol, and why; no other module of the gateway does.
NAMING = {
    "gateway.app": "a summary for people",
    "gateway.cli": "flags for the ports of Sprout",
    "gateway.demo_clients": "a client of each protocol",
    "gateway.commands.arbor_author": "an Arbor author for the demo",
    "gateway.commands.cluster_demo": "peers of each protocol",
    "gateway.commands.cluster_parts": "a flag of `serve`",
    "gateway.commands.demo": "peers of each protocol",
    "gateway.commands.explain": "examples in the help",
    "gateway.commands.links": "a text for people",
    "gateway.commands.log_commands": "`--streamr`, and the help",
    "gateway.commands.pipeline": "the help",
    "gateway.http.openapi": "descriptions for people",
    "gateway.http.schemas": "examples",
    "gateway.service": "a text for people",
}
KNOWING_ADAPTERS = {  # these import something of `adapters`: the registry, and the forest of the demo's author
    *("gateway.app", "gateway.cli", "gateway.commands.arbor_author"),
}
PROTOCOLS = re.compile(r"sprout|arbor|streamr|topic_relay|koshare|ethereum", re.IGNORECASE)
IO = {
    *("anyio", "asyncio", "fastapi", "hypercorn", "sniffio", "socket", "ssl", "starlette", "trio", "uvicorn"),
    "websockets",
}

# The folders of each adapter, and the modules that stand between them: each imports from its own folder and from what
# is named before it. What is not named here may import all of them.
ORDER = {
    "sprout": ("wire", "forest", "store", "mint", "hub", "outgoing", "announced", "arrivals", "sessions"),
    "streamr": (
        "wire",
        "crypto",
        "model",
        "context",
        "trust",
        "message_forms",
        "publishing",
        "shared_parts",
        "sessions",
        "rest",
    ),
}
ADAPTERS_MAY = STORAGE | {
    "gateway.adapter",
    "gateway.link_channels",
    "gateway.monitoring.metrics",
    "gateway.access.authorization",
}
FACE = re.compile(r"(.*_)?routes|responses|commands")  # an adapter's own FastAPI routers, and its part of the command

# What the pipeline shares with the gateway and its adapters: all of it pure.
SHARED = {
    *("gateway.core.errors", "gateway.core.jsontext", "gateway.core.message"),
    *("gateway.storage.archive", "gateway.storage.layout", "gateway.storage.record", "gateway.storage.segments"),
    "gateway.storage.record_schema",
}
SHARED_CODECS = {
    *("adapters.sprout.wire.codec", "adapters.sprout.forest.forest", "adapters.sprout.forest.openpgp"),
    *("adapters.sprout.forest.packets", "adapters.sprout.forest.twig", "adapters.topic_relay.codec"),
    *("adapters.streamr.wire.codec", "adapters.streamr.wire.control", "adapters.streamr.wire.errors"),
    *("adapters.streamr.wire.ids", "adapters.streamr.wire.message", "adapters.streamr.crypto.batch"),
    *("adapters.streamr.crypto.signing", "adapters.streamr.model.stored", "adapters.streamr.dump_files"),
}

SQL = re.compile(r"\b(SELECT|INSERT|REPLACE|UPDATE|DELETE|CREATE|DROP|FROM|JOIN|INTO|TABLE|INDEX|TRIGGER|VIEW)\b")

# The modules that know each other in circles, counting what they import for their types alone. Nothing may be added
# here; what is in no circle any more has to go.
CIRCLES: list[list[str]] = []


each_of_the_gateway = pytest.mark.parametrize("path", modules("gateway"), ids=name_of)
each_of_the_adapters = pytest.mark.parametrize("path", modules("adapters"), ids=name_of)


# The gateway


@each_of_the_gateway
def test_the_gateways_modules_keep_their_places(path: Path) -> None:
    name = name_of(path)
    for place, allowed in MAY.items():
        if within(name, place):
            assert not strangers(path, allowed | {place})
    assert ("adapters" in tops(path)) == (name in KNOWING_ADAPTERS)


@each_of_the_gateway
def test_the_core_needs_the_standard_library_only(path: Path) -> None:
    if within(name_of(path), "gateway.core", "gateway.adapter"):
        libraries = LIBRARIES.get(name_of(path), set())
        assert tops(path) <= {"__future__", "gateway", *sys.stdlib_module_names, *libraries}


@each_of_the_gateway
def test_the_core_and_the_storage_do_not_wait(path: Path) -> None:
    if within(name_of(path), *SYNCHRONOUS):
        assert not tops(path) & IO, "the core does no network I/O and knows no event loop"
        assert "async def" not in path.read_text()
        assert "await " not in re.sub(r'"""(.|\n)*?"""', "", path.read_text())


def test_only_listed_modules_name_a_protocol() -> None:
    naming = {
        name_of(path)
        for path in modules("gateway")
        if PROTOCOLS.search(re.sub(r'"""(.|\n)*?"""|#.*', "", path.read_text()))
    }
    assert {name for name in naming if not within(name, *NAMING)} == set()
    assert {place for place in NAMING if not any(within(name, place) for name in naming)} == set()


@pytest.mark.parametrize("path", paths("gateway/client"), ids=name_of)
def test_the_client_for_programs_needs_anyio_and_httpx_only(path: Path) -> None:
    assert tops(path) <= {"__future__", "gateway", "anyio", "httpx", *sys.stdlib_module_names}


# The adapters


@each_of_the_adapters
def test_adapters_know_the_core_and_no_other_adapter(path: Path) -> None:
    own = ".".join(path.relative_to(ROOT).parts[:2])
    assert not strangers(path, {own}, of="adapters")
    if not FACE.fullmatch(path.stem):
        assert not tops(path) & IO
        assert not strangers(path, ADAPTERS_MAY)


@each_of_the_adapters
def test_the_folders_of_an_adapter_have_an_order(path: Path) -> None:
    _, protocol, place, *_ = name_of(path).split(".")
    order = ORDER.get(protocol, ())
    if place in order:
        own = f"adapters.{protocol}"
        before = order[: order.index(place) + 1]
        assert not strangers(path, {f"{own}.{folder}" for folder in before}, of=own)


# The tables of the index


def own_tables() -> frozenset[str]:
    """The tables of the storage, and the views and indexes that nobody else may name; `messages` is not among them."""
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    names = frozenset(name for (name,) in database.execute("SELECT name FROM sqlite_schema"))
    database.close()
    return names


def texts(tree: tuple[ast.AST, ...]) -> list[str]:
    """Every string in *tree* but docstrings; what is put into an f-string is a question mark."""
    docstrings = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    found = []
    for node in tree:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                found.append(text)
            case ast.JoinedStr(values=parts):
                found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in parts))
    return found


def test_only_the_storage_names_its_tables() -> None:
    """Adapters and REST use the view `messages` and the queries of `Lookup`, so a column can change without them."""
    names = own_tables()
    assert names >= {"records", "ids", "aliases", "known", "channels", "peers", "meta", "records_time"}
    word = re.compile(rf"\b({'|'.join(names)})\b")
    found = []
    for path in [*modules("adapters"), *modules("gateway")]:
        if within(name_of(path), "gateway.storage"):
            continue
        said = [text for text in texts(nodes(path)) if SQL.search(text) and word.search(text)]
        for node in nodes(path):
            match node:
                case ast.Call(func=ast.Name(id="Row"), args=[ast.Constant(value=table), *_]) if table in names:
                    said.append(f"Row({table!r})")
        found += [f"{name_of(path)}: {text}" for text in said]
    assert found == []


# The pipeline


def test_nothing_imports_the_pipeline() -> None:
    for path in [*modules("gateway"), *modules("adapters")]:
        if name_of(path) != "gateway.commands.pipeline":
            assert "pipeline" not in tops(path), path


@pytest.mark.parametrize("path", modules("pipeline"), ids=name_of)
def test_the_pipeline_imports_only_pure_modules(path: Path) -> None:
    if path.stem != "submit":  # the command line
        assert not strangers(path, SHARED)
    assert not strangers(path, SHARED_CODECS, of="adapters")
    if path.parent.name == "transforms":
        assert not tops(path) & (IO | {"httpx", "pathlib", "os", "shutil"})
        assert "SparkSession" not in path.read_text()


def circles() -> list[list[str]]:
    """The modules of the gateway and its adapters that know each other, directly or not, for their types too."""
    known = {
        name: {other for other in imports(path, types=True) if other in OURS and not within(other, "pipeline")}
        for name, path in OURS.items()
        if not within(name, "pipeline")
    }
    reached: dict[str, set[str]] = {}
    for name in known:
        found, left = set[str](), list(known[name])
        while left:
            if (other := left.pop()) not in found:
                found.add(other)
                left += known[other]
        reached[name] = found
    of = {name: sorted(other for other in found if name in reached[other]) for name, found in reached.items()}
    return [list(one) for one in sorted({tuple(circle) for circle in of.values() if circle})]


def test_no_module_joins_a_circle() -> None:
    assert circles() == CIRCLES
