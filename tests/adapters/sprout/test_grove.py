"""Groves, the directories of the reference, are read and written byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import decode, node_id, sign_identity
from adapters.sprout.grove import scan_grove
from adapters.sprout.wire import base64url
from gateway.adapter import TransferFault
from gateway.cli import app
from gateway.core.errors import OperatorError
from tests.adapters.sprout.store.test_lineage import load


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write(folder: Path, *lines: str) -> Path:
    """A grove of the nodes on these lines."""
    folder.mkdir(exist_ok=True)
    for line in lines:
        id, _, wire = line.partition(" ")
        (folder / id).write_bytes(base64url.decode(wire.encode()))
    return folder


@pytest.fixture
def grove(vectors: Path) -> Path:
    """The grove that the reference relay wrote."""
    return vectors / "vector-grove"


def test_a_grove_is_imported_and_exported_byte_for_byte(place: Any, grove: Path, tmp_path: Path) -> None:
    given = files(grove)
    report = place.adapter.files().read([grove], place.settle)
    assert (report.done, report.known, report.faults) == (len(given), 0, [])
    out = tmp_path / "out"
    out.mkdir()
    assert not place.adapter.files().write(out, place.settle).faults
    written = files(out)
    assert {name: written[name] for name in given} == given
    (own,) = written.keys() - given.keys()
    assert own == place.adapter.mint.id
    again = place.adapter.files().read([grove], place.settle)
    assert (again.done, again.known) == (0, len(given))


def test_messages_of_other_protocols_are_exported(place: Any, make_place: Callable[..., Any], tmp_path: Path) -> None:
    toy = place.toy()
    for number in range(300):  # more than are gathered at a time
        toy.say({"n": number})
    toy.say({"n": "answer"}, parent=toy.say({"n": "question"}).id)
    assert not place.adapter.files().write(tmp_path, place.settle).faults
    nodes = {name: decode(raw) for name, raw in files(tmp_path).items() if name.startswith("SHA512")}
    said = {json.loads(node.content.blob)["n"] for node in nodes.values() if getattr(node, "depth", 0) >= 2}  # type: ignore[union-attr]
    assert said == {*range(300), "question", "answer"}
    other = make_place("other")
    report = other.adapter.files().read([tmp_path], other.settle)
    assert (report.done, report.faults) == (len(nodes), [])
    again = other.adapter.files().read([tmp_path], other.settle)
    assert (again.done, again.known) == (0, len(nodes))


def test_files_that_are_of_no_use_are_named_and_passed_over(place: Any, alice: Any, bob: Any, tmp_path: Path) -> None:
    community = alice.community("a grove")
    reply, orphan = alice.reply(community, "hello"), bob.reply(community, "whose author is missing")
    folder = write(tmp_path / "grove", alice.identity, community, reply, orphan)
    good = base64url.decode(reply.split(" ")[1].encode())
    forged = good[:-1] + bytes((good[-1] ^ 1,))
    wrong = "SHA512_B32__" + "A" * 43
    (folder / wrong).write_bytes(good)
    (folder / ("SHA512_B32__" + "B" * 43)).write_bytes(b"")
    (folder / ("SHA512_B32__" + "C" * 43)).write_bytes(good + b"!")
    (folder / node_id(forged)).write_bytes(forged)
    (folder / ("SHA512_B32__" + "D" * 43)).mkdir()
    (folder / "arbor.privkey").write_bytes(b"none of our business")
    report = place.adapter.files().read([folder], place.settle)
    assert report.done == 3
    assert sorted(report.faults) == sorted(
        [
            TransferFault(wrong, f"its name is wrong: it holds {reply.split(' ')[0]}"),
            TransferFault("SHA512_B32__" + "B" * 43, "it holds no node: shorter than its fields"),
            TransferFault("SHA512_B32__" + "C" * 43, "it holds no node: bytes behind the signature"),
            TransferFault("SHA512_B32__" + "D" * 43, "it cannot be read: Is a directory"),
            TransferFault(node_id(forged), "the signature is not the author's"),
            TransferFault(orphan.split(" ")[0], f"it needs {bob.id}"),
        ]
    )


def test_valid_nodes_that_are_not_kept_are_reported_apart(
    make_place: Callable[..., Any], alice: Any, tmp_path: Path
) -> None:
    place = make_place(log={"keep_days": 30})
    community = alice.community("a grove")
    presence = alice.reply(community, "", b"activity/1\x001\0invisible/1\0true")
    direct = alice.reply(community, "psst", b"to/1\x005")
    old = alice.reply(community, "old", created=place.clock.now - 31 * 86_400_000)
    folder = write(tmp_path / "grove", alice.identity, community, alice.reply(community, "hi"), presence, direct, old)
    report = place.adapter.files().read([folder], place.settle)
    assert (report.done, report.known, report.faults) == (3, 0, [])
    assert sorted(report.unkept) == sorted(
        [
            TransferFault(presence.split(" ")[0], "it only announces presence"),
            TransferFault(direct.split(" ")[0], "a direct message is never stored"),
            TransferFault(old.split(" ")[0], "it is older than the messages that are kept"),
        ]
    )


def test_ancestors_of_kept_nodes_are_kept(make_place: Callable[..., Any], alice: Any, bob: Any, tmp_path: Path) -> None:
    place, day = make_place(log={"keep_days": 30}), 86_400_000
    ends = {"expiration/1": b"2026-11-21T00:00:00Z"}
    bob.identity = bob.line(sign_identity("brief", bob.key, place.clock.now - 40 * day, twig.encode(ends)))
    community = alice.community("a grove")
    top = alice.reply(community, "top", created=place.clock.now - 32 * day)
    old = [top, bob.reply(top, "further down", created=place.clock.now - 31 * day)]
    presence = alice.reply(community, "", twig.encode({"activity/1": b"0", "invisible/1": b"true"} | ends))
    good = [alice.reply(old[-1], "kept"), alice.reply(presence, "I thought that was a message")]
    alone = alice.reply(community, "old", created=place.clock.now - 33 * day)
    folder = write(tmp_path / "grove", alice.identity, bob.identity, community, *old, presence, *good, alone)
    report = place.adapter.files().read([folder], place.settle)
    assert (report.done, report.known, report.faults) == (8, 0, [])
    assert report.unkept == [TransferFault(alone.split(" ")[0], "it is older than the messages that are kept")]
    assert load(place, community) == {line.split(" ")[0] for line in (*old, presence, *good)}
    assert place.adapter.files().read([folder], place.settle).known == 8


def test_the_command_reports_nodes_that_are_not_kept(alice: Any, tmp_path: Path) -> None:
    community = alice.community("a grove")
    direct = alice.reply(community, "psst", b"to/1\x005")
    folder = write(tmp_path / "grove", alice.identity, community, direct)
    code, output = trellis("import", "--grove", str(folder), "--data", str(tmp_path / "data"))
    assert (code, "2 nodes imported, 0 known already, 1 not kept, faults: 0\n" in output) == (0, True)
    assert f"{direct.split(' ')[0]}: a direct message is never stored" in output


def test_importing_a_folder_without_nodes_fails(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no node")
    code, output = trellis("import", "--grove", str(tmp_path), "--data", str(tmp_path / "data"))
    assert (code, f"there are no nodes in {tmp_path}" in output, "SHA512_" in output) == (1, True, True)


def test_an_export_never_overwrites_an_existing_file(place: Any, grove: Path, tmp_path: Path) -> None:
    place.adapter.files().read([grove], place.settle)
    name = next(iter(files(grove)))
    (tmp_path / name).write_bytes(b"precious")
    report = place.adapter.files().write(tmp_path, place.settle)
    assert report.faults == [TransferFault(name, "a file of that name holds something else, and was not changed")]
    assert (tmp_path / name).read_bytes() == b"precious"
    assert place.adapter.files().write(tmp_path, place.settle).known == report.done


def test_parents_and_authors_come_first(alice: Any, bob: Any, tmp_path: Path) -> None:
    lines = [alice.identity, alice.community("deep")]
    for number in range(20):
        lines.append((alice, bob)[number % 2].reply(lines[-1], "deeper"))
    folder = write(tmp_path / "grove", bob.identity, *lines)
    paths, flaws = scan_grove(folder)
    assert not flaws
    assert [path.name for path in paths][2:] == [line.split(" ")[0] for line in lines[1:]]


def trellis(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, OperatorError):
        return 1, result.output + str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def test_the_command_imports_and_exports_groves(grove: Path, tmp_path: Path) -> None:
    data, out, count = str(tmp_path / "data"), tmp_path / "out", len(files(grove))
    done = trellis("import", "--grove", str(grove), "--data", data)
    assert done == (0, f"{count} nodes imported, 0 known already, faults: 0\n")
    assert trellis("verify", "--data", data)[0] == 0
    code, output = trellis("export", "--grove", str(out), "--data", data)
    assert (code, f"{count + 1} nodes exported" in output) == (0, True)
    assert files(grove).items() <= files(out).items()
    (out / ("SHA512_B32__" + "A" * 43)).write_bytes(b"?")
    code, output = trellis("import", "--grove", str(out), "--data", data)
    assert (code, "it holds no node" in output) == (1, True)
    assert trellis("import", "--grove", str(tmp_path / "none"), "--data", data)[0] == 2
    assert trellis("import", "--data", data)[0] == 2
    assert trellis("export", "--grove", str(out), "--data", str(tmp_path / "none"))[0] == 1
