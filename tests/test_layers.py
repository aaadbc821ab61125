"""Who may import whom: the architecture, kept as a test. Folders are the layers."""

from __future__ import annotations

import ast
import builtins
import re
import sqlite3
import sys
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from gateway.storage.schema import SCHEMA

ROOT = Path(__file__).parent.parent

# What a module of the gateway may import of the gateway when it runs, beside its own folder: folders, and single
# modules. What is not named here is put together from everything: the commands, and what is in no folder.
CORE = {"gateway.core"}
STORAGE = CORE | {"gateway.storage"}
MAY = {
    "gateway.core": set[str](),
    "gateway.adapter": CORE,
    "gateway.exchange": CORE,
    "gateway.storage": CORE,
    "gateway.access": CORE | {"gateway.settings"},
    "gateway.http": STORAGE | {"gateway.access", "gateway.adapter", "gateway.reconciliation", "gateway.runtime"},
    "gateway.help": {"gateway.http"},
    "gateway.webhooks": STORAGE | {"gateway.access", "gateway.http", "gateway.runtime", "gateway.settings"},
    "gateway.shells": CORE | {"gateway.http", "gateway.adapter", "gateway.listeners"},
    "gateway.client": set[str](),
    "gateway.clients": {"gateway.client"},
    "gateway.backup": STORAGE,
    "gateway.cluster": STORAGE,
    "gateway.jetstream": {"gateway.core.errors"},
    "gateway.listeners": CORE
    | {
        "gateway.access",
        "gateway.adapter",
        "gateway.monitoring.metrics",
        "gateway.settings.settings",
        "gateway.system",
    },
    "gateway.membership": STORAGE
    | {"gateway.access", "gateway.adapter", "gateway.cluster", "gateway.jetstream"}
    | {"gateway.monitoring.metrics", "gateway.settings", "gateway.shells.links"},
    "gateway.monitoring": STORAGE | {"gateway.settings"},
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
    "gateway.clients": "a client of each protocol",
    "gateway.commands.arbor_author": "an Arbor author for the demo",
    "gateway.commands.bench_load": "what the protocols that it measures are called in its output",
    "gateway.commands.cluster_demo": "peers of each protocol",
    "gateway.commands.cluster_parts": "a flag of `serve`",
    "gateway.commands.demo": "peers of each protocol",
    "gateway.commands.explain": "examples in the help",
    "gateway.commands.links": "a text for people",
    "gateway.commands.operate": "`--streamr`, and the help",
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
    "sprout": ("wire", "forest", "store", "mint", "hub", "outgoing", "intake", "announces", "sessions"),
    "streamr": ("wire", "crypto", "model", "context", "trust", "forms", "publishing", "parts", "sessions", "rest"),
}
ADAPTERS_MAY = STORAGE | {"gateway.adapter", "gateway.exchange", "gateway.monitoring.metrics", "gateway.access.auth"}
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
    *("adapters.streamr.crypto.signing", "adapters.streamr.model.stored", "adapters.streamr.dumps"),
}

SQL = re.compile(r"\b(SELECT|INSERT|REPLACE|UPDATE|DELETE|CREATE|DROP|FROM|JOIN|INTO|TABLE|INDEX|TRIGGER|VIEW)\b")

LONGEST_FILE, LONGEST_FUNCTION = 400, 40  # lines
LONGEST_ADAPTER = 249  # of `adapter.py`, which only puts the other files of its protocol together

# The modules that know each other in circles, counting what they import for their types alone. Nothing may be added
# here; what is in no circle any more has to go.
CIRCLES: list[list[str]] = []

ERROR_FAMILIES = {"RequestError", "ProtocolError", "OperatorError", "InvalidData"}  # of `gateway.core.errors`
OTHER_ERRORS = {"AddressRefused", "CompactionStopped"}  # docs/design.md says why each is outside


@cache
def paths(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


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


def test_no_protocol_is_named_but_where_it_is_said_why() -> None:
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
def test_the_pipeline_shares_only_what_is_pure(path: Path) -> None:
    if path.stem != "submit":  # the command line
        assert not strangers(path, SHARED)
    assert not strangers(path, SHARED_CODECS, of="adapters")
    if path.parent.name == "transforms":
        assert not tops(path) & (IO | {"httpx", "pathlib", "os", "shutil"})
        assert "SparkSession" not in path.read_text()


# All of it


def test_imports_are_spelled_in_one_way() -> None:
    """What is in one's own folder by one dot, everything else by its full name."""
    for path in [*paths("gateway"), *paths("adapters")]:
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            source = node.module or ""
            if node.level:
                assert (node.level, "." in source) == (1, False), f"{path}: {source}"
            else:
                for name in (f"{source}.{alias.name}" for alias in node.names):
                    assert (name if name in OURS else source).rpartition(".")[0] != package_of(path), f"{path}: {name}"


@pytest.mark.parametrize("folder", ["gateway", "adapters", "pipeline", "benchmarks"])
def test_a_file_is_one_idea(folder: str) -> None:
    assert [path for path in paths(folder) if len(path.read_text().splitlines()) > LONGEST_FILE] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("adapters/*/adapter.py")), ids=name_of)
def test_an_adapter_is_put_together_from_files_of_its_own(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_ADAPTER


@pytest.mark.parametrize("folder", ["gateway", "adapters", "pipeline", "benchmarks"])
def test_a_function_fits_a_screen(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
        for path in paths(folder)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert long == []


def test_each_folder_says_what_is_in_it() -> None:
    for name, path in OURS.items():
        if path.name == "__init__.py":
            assert (ast.get_docstring(cast(ast.Module, nodes(path)[0])) or "").split("\n")[0].endswith("."), name


def test_tests_stand_where_what_they_test_stands() -> None:
    for path in [*modules("tests/gateway"), *modules("tests/adapters")]:
        parts = path.relative_to(ROOT / "tests").parts
        subject = re.sub(r"^test_(sprout_|streamr_|topic_relay_)?", "", path.stem)
        package = "/".join(parts[:2] if parts[0] == "adapters" else parts[:1])
        places = [module.parent for module in modules(package) if module.stem == subject]
        assert not places or ROOT.joinpath(*parts).parent in places, path


def test_a_class_name_stands_for_one_thing() -> None:
    found: dict[str, int] = {}
    for path in [*modules("gateway"), *modules("adapters"), *modules("pipeline")]:
        if not within(name_of(path), "gateway.client", "gateway.clients"):  # they share nothing with the gateway
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                found[name] = found.get(name, 0) + 1
    assert not {name for name, count in found.items() if count > 1}


def bases_of_classes() -> dict[str, list[str]]:
    """The names of the bases of each class, by its name, but for those of the clients."""
    found: dict[str, list[str]] = {}
    for path in [*modules("gateway"), *modules("adapters"), *modules("pipeline")]:
        if not within(name_of(path), "gateway.client", "gateway.clients"):
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    found[node.name] = [ast.unparse(base) for base in node.bases]
    return found


def test_errors_belong_to_four_families() -> None:
    bases = bases_of_classes()

    def ancestors(name: str) -> set[str]:
        return {name}.union(*map(ancestors, bases.get(name, ())))

    errors = {name for name in bases if any(is_error(each) for each in ancestors(name))}
    design = (ROOT / "docs/design.md").read_text()
    assert all(f"`{name}`" in design for name in ERROR_FAMILIES | OTHER_ERRORS)
    assert {name for name in errors if not ancestors(name) & ERROR_FAMILIES} == OTHER_ERRORS


def is_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


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
