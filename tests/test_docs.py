"""Documented names exist, and existing names are documented."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import typer
from pydantic import BaseModel, SecretStr

from adapters import ADAPTERS
from adapters.sprout.wire.parser import Parser
from adapters.streamr.wire import codec as control
from adapters.topic_relay import codec as topic_relay
from gateway.adapter import WireMessage
from gateway.app import create_app
from gateway.cli import app
from gateway.commands import reference
from gateway.http.websocket.messages import PATH, decode
from gateway.monitoring.metrics import COUNTERS, FAULT_KINDS, GAUGES, HISTOGRAMS
from gateway.settings import config
from gateway.settings.config import NOT_SETTINGS
from gateway.settings.settings import PREFIX, settings_model
from gateway.welcome import lines_to_try
from tests import reference_wire
from tests.reference import PAGES as REFERENCE

ROOT = Path(__file__).parent.parent
DECISIONS = ROOT / "docs" / "decisions"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
README = (ROOT / "README.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
NO_EFFECT = "No effect yet."
WIRES = reference_wire.places()
REGISTRIES = ("pypi", "pythonhosted", "npmjs", "proxy.golang", "crates.io", "docker.io", "ghcr")

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def code(text: str) -> list[str]:
    """The pieces of *text* that are set as code."""
    fence = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks: list[str] = [line for block in fence.findall(text) for line in block.splitlines()]
    inline: list[str] = re.findall(r"`([^`\n]+)`", fence.sub("", text))
    return blocks + inline


def rows(text: str, *head: str) -> list[list[str]]:
    """The rows of the table with these headings."""
    lines = text.split("| " + " | ".join(head) + " |\n")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# Dependencies


def test_each_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [[re.split(r"[\[<>=~!; ]", line)[0] for line in group] for group in groups]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    tables = [rows(part, "package", "why") for part in text.split("\n## ")[1:]]
    assert [[row[0] for row in table] for table in tables] == wanted
    assert all(row[1] for table in tables for row in table)


def locks_of(target: str, *more: str) -> set[str]:
    """The locks that `make` would hand to pip."""
    command = ["make", "--dry-run", "--silent", target, *more]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {*re.findall(r"-r (\S+\.lock)", printed)}


def test_every_lock_is_audited() -> None:
    locks = {path.name for path in ROOT.glob("*.lock")}
    assert locks == locks_of("audit") >= {"requirements.lock", "requirements-docs.lock"}


@pytest.mark.parametrize("target", ["install", "run", "demo"])
def test_make_installs_only_the_locks_that_a_gateway_needs(target: str, tmp_path: Path) -> None:
    """The tools for tests are four times as large."""
    assert locks_of(target, f"VENV={tmp_path}") == {"requirements-run.lock", "requirements-build.lock"}
    assert "requirements.lock" in locks_of("env", f"VENV={tmp_path}")


def test_pip_installs_from_locks_without_resolving_dependencies() -> None:
    """pip before 24 refuses `coverage[toml]`, locked as `coverage`, once a newer version of it is published."""
    files = ["Makefile", *map(str, [*(ROOT / "docker").glob("Dockerfile*"), ROOT / "docs/how-to/run-as-a-service.md"])]
    installs = [line for file in files for line in (ROOT / file).read_text().split("\n") if "--require-hashes" in line]
    assert len(installs) >= 9
    assert [line for line in installs if "--no-deps" not in line] == []


# Releases


def test_the_changelog_begins_with_unreleased_and_the_current_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", heads[1])


# Settings


def settings() -> dict[str, Any]:
    """Every setting with its default."""

    def walk(values: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
        for name in type(values).model_fields:
            value = getattr(values, name)
            if isinstance(value, BaseModel):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    return dict(walk(settings_model(ADAPTERS).model_construct(), ""))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows(CONFIGURATION, "key", "default", "what it does")}
    assert documented == {key: shown(value) for key, value in settings().items()}


def shown(value: Any) -> str:
    return "none" if value is None else f"`{json.dumps(value, default=str)}`"


def test_every_limit_is_in_the_table_of_limits() -> None:
    """Whatever bounds something is in the table of limits, and nothing else is."""
    bounds = r"limits\..*|.*\.(max_\w+|limit)|log\.(keep_\w+|segment_bytes)"
    limits = {key for key in settings() if re.fullmatch(bounds, key)}
    cells = " ".join(row[0] for row in rows(OPERATIONS, "limit", "default", "at the limit", "where it shows"))
    assert set(re.findall(r"`([^`]+)`", cells)) == limits


@each_document
def test_metrics_that_are_named_exist(path: Path) -> None:
    names = {f"trellis_{name}_total" for name in COUNTERS} | {f"trellis_{name}" for name in (*GAUGES, *HISTOGRAMS)}
    assert set(re.findall(r"`(trellis_\w+)", path.read_text())) <= names


def test_each_kind_of_fault_is_named() -> None:
    assert all(f"`{kind}`" in OPERATIONS for kind in FAULT_KINDS)


def test_each_message_that_operators_look_for_is_written() -> None:
    sources = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    program = "\n".join(path.read_text() for path in sources)
    tables = re.sub(r"`[^`]*`", "", OPERATIONS.split("\n## Everyday tasks")[0])
    messages = set(re.findall(r'"([a-z][^"\n]+)"', tables))
    assert len(messages) > 10
    assert {message for message in messages if message not in program} == set()


def test_settings_without_effect_are_documented_as_such() -> None:
    claimed = {
        key.strip("`") for key, _, text in rows(CONFIGURATION, "key", "default", "what it does") if NO_EFFECT in text
    }
    sources = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    program = "\n".join(path.read_text() for path in sources if path.stem != "settings")
    unused = {key for key in settings() if not re.search(rf"\.{key.split('.')[-1]}\b", program)}
    assert unused == claimed


def test_secrets_have_a_type_that_hides_them() -> None:
    for key, value in settings().items():
        if re.search(r"secret|password|token|private", key):
            assert isinstance(value, SecretStr), key


@each_document
def test_settings_and_variables_that_are_named_exist(path: Path) -> None:
    keys = settings()
    sections = {key.split(".")[0] for key in keys if "." in key}
    for piece in code(path.read_text()):
        if re.fullmatch(rf"({'|'.join(sections)})(\.[a-z_]+)+(?<!\.py)", piece):
            assert any(key == piece or key.startswith(f"{piece}.") for key in keys), piece
        for variable in re.findall(r"TRELLIS_[A-Z_]+[A-Z]", piece):
            key = variable.removeprefix(PREFIX).lower().replace("__", ".")
            assert variable in NOT_SETTINGS or any(k == key or k.startswith(f"{key}.") for k in keys), variable


def test_variables_that_are_no_settings_are_documented() -> None:
    assert all(f"`{name}`" in CONFIGURATION for name in NOT_SETTINGS)


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        assert config.load(ADAPTERS, file)
    assert len(blocks) == 4


# Commands


COMMANDS = {" ".join(path): command for path, command in reference.commands(typer.main.get_group(app))}


@each_document
def test_commands_and_flags_that_are_named_exist(path: Path) -> None:
    for piece in code(path.read_text()):
        for words in re.findall(r"(?:^|[\s/])trellis ([a-z][a-z -]*.*)", piece):
            found = [name for name in COMMANDS if re.match(rf"{name}(?![\w-])", words)]
            groups = {name.split()[0] for name in COMMANDS if " " in name}
            assert found or words in groups, f"trellis {words}"
            if found:
                flags = {flag for option in COMMANDS[found[0]].params for flag in option.opts}
                assert set(re.findall(r"(?<!\S)--[a-z-]+", words)) <= flags | {"--help"}, words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_it_takes(name: str) -> None:
    command = COMMANDS[name]
    examples = re.findall(r"^  trellis (.+?)(?: [|<>].*)?$", command.help.split("Example")[1], re.MULTILINE)
    assert any(example.split()[: len(name.split())] == name.split() for example in examples), command.help
    for example in examples:
        words = shlex.split(example)
        of = max((each for each in COMMANDS if words[: len(each.split())] == each.split()), key=len)
        COMMANDS[of].make_context(of, words[len(of.split()) :], resilient_parsing=False)


WITHOUT_JSON = {  # commands whose results are no data for programs, or are for programs already
    "serve": "its ready line is JSON",
    "export": "writes records as JSON lines",
    "import": "tells how much it imported",
    "backup": "tells what it wrote",
    "restore": "tells what it wrote",
    "healthcheck": "its exit code is the answer",
    "key add": "prints the key alone",
    "key rotate": "prints the key alone",
    "key remove": "prints nothing",
    "identity new": "prints the id alone",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_prints_data_prints_json(name: str) -> None:
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}
    assert ("--json" in flags) != (name in WITHOUT_JSON)


def test_the_reference_of_commands_is_up_to_date() -> None:
    """`python -m gateway.commands.reference > docs/reference/commands.md` makes it again."""
    assert (ROOT / "docs" / "reference" / "commands.md").read_text() == reference.page()


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_is_made_from_the_code(page: str) -> None:
    assert (ROOT / "docs" / "reference" / page).read_text() == REFERENCE[page](), "run python -m tests.reference"


@pytest.mark.parametrize(("title", "message"), [(title, each) for title, messages in WIRES for each in messages])
def test_each_example_on_the_wire_is_one(title: str, message: WireMessage) -> None:
    """The page shows it in its table; its schema, and the decoder of its protocol, take it."""
    text = reference_wire.example(title, message)
    value = json.loads(text) if message.media_type == "application/json" else text
    jsonschema_rs.Draft7Validator(dict(message.schema)).validate(value)
    if title.startswith("Streamr, `/api"):
        control.decode_control(text)
    elif title.startswith("Arbor"):
        parser = Parser()
        parser.feed(text.encode())
        assert parser.next_frame() is not None
    elif title.startswith("REST") and message.received:
        decode(text.encode())
    elif message.name != "Refused" and title.startswith("topic relay") and message.received:
        topic_relay.decode(text.encode())


@each_document
def test_make_targets_that_are_named_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for piece in code(path.read_text()):
        for target in re.findall(r"^make ([a-z-]+)", piece):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_readme_has_the_lines_that_serve_prints() -> None:
    """README.md shows what `trellis serve` prints."""
    assert "\n".join(lines_to_try()) in README


# Routes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Everything that is served, as `GET /path/{}`."""
    made = create_app(config.load(ADAPTERS, None, {"data": tmp_path_factory.mktemp("docs")}))
    paths = made.openapi()["paths"].items()
    http = {f"{method.upper()} {nameless(path)}" for path, methods in paths for method in methods}
    sockets = {f"ws {path}" for adapter in ADAPTERS for path in adapter.paths}
    return http | sockets | {f"ws {PATH}"}


def nameless(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path.partition("?")[0])


@each_document
def test_routes_that_are_named_exist(path: Path, served: set[str]) -> None:
    for piece in code(path.read_text()):
        for methods, route in re.findall(r"\b((?:GET|POST|PUT|DELETE)(?:\|[A-Z]+)*) (/[^\s?]*)", piece):
            for method in methods.split("|"):
                assert f"{method} {nameless(route)}" in served, piece
        for route in re.findall(r"wss?://[^/\s]+(/[^\s?']*)", piece):
            assert f"ws {route}" in served, piece


# Files and links


def test_the_tree_has_every_module() -> None:
    text = (ROOT / "docs" / "tree.md").read_text()
    listed = {
        f"{folder}/{row[0].strip('`')}"
        for folder, part in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        if "| file |" in part
        for row in rows(part, "file", "is about")
    }
    modules = [path for top in ("gateway", "adapters", "pipeline") for path in (ROOT / top).rglob("*.py")]
    assert listed == {str(path.relative_to(ROOT)) for path in modules if path.name != "__init__.py"}


def test_contributing_has_every_folder() -> None:
    table = " ".join(row[0] for row in rows((ROOT / "CONTRIBUTING.md").read_text(), "where", "what"))
    folders = [path.parent for top in ("gateway", "adapters", "pipeline") for path in ROOT.glob(f"{top}/*/__init__.py")]
    ours = {str(path.relative_to(ROOT)) for path in folders if path.parent.name != "pipeline"} | {"pipeline"}
    assert ours - set(re.findall(r"`([^`]+)`", table)) == set()


def test_the_index_of_decisions_has_each_with_its_date_and_title() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    heads = [(path, *re.match(r"# (\d+)\. (.+)\n\n(\S+)", path.read_text()).groups()) for path in pages]  # type: ignore[union-attr]
    assert rows((DECISIONS / "README.md").read_text(), "number", "date", "decision") == [
        [f"[{number}]({path.name})", date, title] for path, number, title, date in heads
    ]
    assert [(int(path.name[:4]), int(number)) for path, number, _, _ in heads] == [
        (at, at) for at in range(1, len(heads) + 1)
    ]


@each_document
def test_links_and_files_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (path.parent / target).exists(), target
    for piece in code(text):
        if re.fullmatch(r"(gateway|adapters|tests|docs|benchmarks|docker|deploy)(/[\w/.-]+)?", piece):
            assert (ROOT / piece).exists(), piece


@each_document
def test_no_registry_is_named(path: Path) -> None:
    assert not [host for host in REGISTRIES if host in path.read_text().lower()]
