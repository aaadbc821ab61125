"""The sizes of files and functions, how names and imports are spelled, and the families of errors."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path
from typing import cast

import pytest

from tests.modules import OURS, ROOT, functions, modules, name_of, nodes, package_of, paths, within

LONGEST_FILE, LONGEST_FUNCTION = 400, 40  # lines
LONGEST_ADAPTER = 249  # of `adapter.py`, which only puts the other files of its protocol together

ERROR_FAMILIES = {"RequestError", "ProtocolError", "OperatorError", "InvalidData"}  # of `gateway.core.errors`
OTHER_ERRORS = {"AddressRefused", "AnswerTooLong", "CompactionStopped"}  # docs/design.md says why each is outside


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


@pytest.mark.parametrize("folder", ["gateway", "adapters", "pipeline", "benchmarks", "tests"])
def test_a_file_is_one_idea(folder: str) -> None:
    assert [path for path in paths(folder) if len(path.read_text().splitlines()) > LONGEST_FILE] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("adapters/*/adapter.py")), ids=name_of)
def test_an_adapter_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_ADAPTER


@pytest.mark.parametrize("folder", ["gateway", "adapters", "pipeline", "benchmarks", "tests"])
def test_a_function_fits_a_screen(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
        for path in paths(folder)
        for node in functions(path)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert long == []


def test_each_package_has_a_docstring() -> None:
    for name, path in OURS.items():
        if path.name == "__init__.py":
            assert (ast.get_docstring(cast(ast.Module, nodes(path)[0])) or "").split("\n")[0].endswith("."), name


def test_tests_are_in_the_folder_of_their_subject() -> None:
    for path in [*modules("tests/gateway"), *modules("tests/adapters")]:
        parts = path.relative_to(ROOT / "tests").parts
        subject = re.sub(r"^test_(sprout_|streamr_|topic_relay_)?", "", path.stem)
        package = "/".join(parts[:2] if parts[0] == "adapters" else parts[:1])
        places = [module.parent for module in modules(package) if module.stem == subject]
        assert not places or ROOT.joinpath(*parts).parent in places, path


def test_class_names_are_unique() -> None:
    found: dict[str, int] = {}
    for path in [*modules("gateway"), *modules("adapters"), *modules("pipeline")]:
        if not within(name_of(path), "gateway.client", "gateway.demo_clients"):  # they share nothing with the gateway
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                found[name] = found.get(name, 0) + 1
    assert not {name for name, count in found.items() if count > 1}


def test_class_names_of_tests_and_benchmarks_are_unique() -> None:
    found: dict[str, list[str]] = {}
    for path in [*paths("tests"), *paths("benchmarks")]:
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(name_of(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def bases_of_classes() -> dict[str, list[str]]:
    """The names of the bases of each class, by its name, but for those of the clients."""
    found: dict[str, list[str]] = {}
    for path in [*modules("gateway"), *modules("adapters"), *modules("pipeline")]:
        if not within(name_of(path), "gateway.client", "gateway.demo_clients"):
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
