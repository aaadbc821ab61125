"""Damage to a backup is found and located before anything is written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import re
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.backup import bundle
from gateway.backup.bundle import DIGEST, MANIFEST, entry_of, read, skip, write
from gateway.backup.errors import BackupError
from gateway.backup.manifest import Manifest, is_allowed
from gateway.backup.restoring import restore
from gateway.backup.snapshot import Source
from gateway.cli import app

CONTENTS = {
    "keys/gateway.json": b'{"id": "0123456789abcdef"}',
    "log/00000000000000000001.jsonl": b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(4000)),
    "log/00000000000000000900.jsonl": b"short",
}


def ask() -> str:
    raise AssertionError("nobody has to be asked for a passphrase")


def sources(contents: dict[str, bytes]) -> list[Source]:
    return [Source(name, io.BytesIO(data), len(data)) for name, data in contents.items()]


def manifest(contents: dict[str, bytes]) -> Manifest:
    entries = tuple(entry_of(source) for source in sources(contents))
    return Manifest("0123456789abcdef", "1.0", 1_700_000_000_000, 900, entries, {})


def make(path: Path, contents: dict[str, bytes] = CONTENTS) -> bytes:
    with path.open("wb") as out:
        write(out, manifest(contents), sources(contents))
    return path.read_bytes()


def forge(path: Path, listed: dict[str, Any], members: dict[str, bytes]) -> None:
    """A backup with any manifest and any members."""
    text = json.dumps(listed).encode()
    about = {MANIFEST: text, DIGEST: hashlib.sha256(text).hexdigest().encode()}
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for name, data in (about | members).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_a_backup_is_an_archive_that_ordinary_programs_read(tmp_path: Path) -> None:
    make(tmp_path / "backup")
    with tarfile.open(tmp_path / "backup", "r:gz") as tar:
        assert tar.getnames() == [MANIFEST, DIGEST, *CONTENTS]
        assert {member.mode for member in tar.getmembers()} == {0o600}
        listed, told = (tar.extractfile(name).read() for name in (MANIFEST, DIGEST))  # type: ignore[union-attr]
    assert told.decode() == f"{hashlib.sha256(listed).hexdigest()}  {MANIFEST}\n"
    assert read(tmp_path / "backup", ask, skip) == manifest(CONTENTS)


def test_every_damaged_byte_is_noticed_and_nothing_is_written(tmp_path: Path) -> None:
    path, data = tmp_path / "backup", tmp_path / "data"
    whole = make(path)
    harmless = range(3, 10)  # time, flags and system in the header of gzip, which say nothing about the content
    for at in (*range(3), *range(10, len(whole), 1999), *range(len(whole) - 9, len(whole))):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :])
        with pytest.raises(BackupError, match=rf"^{re.escape(str(path))}: .* \(near byte [\d,]+, in \S+.*\)$"):
            restore(path, data, ask)
        assert [each.name for each in tmp_path.iterdir()] == ["backup"], f"byte {at}"
    assert at not in harmless


def test_a_file_that_is_cut_off_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    whole = make(path)
    for size in (*range(0, len(whole), 4001), *range(len(whole) - 12, len(whole))):
        path.write_bytes(whole[:size])
        with pytest.raises(BackupError, match=r"\(near byte"):
            read(path, ask, skip)


def test_the_damaged_file_is_named(tmp_path: Path) -> None:
    path, listed = tmp_path / "backup", json.loads(manifest(CONTENTS).encode())
    name = "log/00000000000000000900.jsonl"
    forge(path, listed, CONTENTS | {name: b"sHort"})
    with pytest.raises(BackupError, match=f"{name} is damaged: its checksum does not match .*in {name}"):
        read(path, ask, skip)
    forge(path, listed, {key: value for key, value in CONTENTS.items() if key != name})
    with pytest.raises(BackupError, match=f"{name} is missing or damaged"):
        read(path, ask, skip)
    forge(path, listed, CONTENTS | {"log/00000000000000000901.jsonl": b""})
    with pytest.raises(BackupError, match="more follows than its manifest lists"):
        read(path, ask, skip)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "its format is 2"),
        ({"files": []}, "does not name keys/gateway.json"),
        ({"files": [{"name": "keys/../../etc/passwd", "size": 1, "sha256": ""}]}, "that no backup has"),
        ({"files": [{"name": "/etc/passwd", "size": 1, "sha256": ""}]}, "that no backup has"),
        ({"files": [{"name": "keys/a", "size": 1, "sha256": ""}] * 2}, "a file twice"),
        ({"files": [{"name": "keys/a"}]}, "its manifest is not valid"),
        ({"surprise": 1}, "its manifest is not valid"),
        ({"files": [{"name": "keys/a", "size": math.inf, "sha256": ""}]}, "its manifest is not valid"),
        ({"origins": 3}, "its manifest is not valid"),
        ({"gateway": ["a"]}, "its manifest is not valid"),
        ({"last_seq": None}, "its manifest is not valid"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    forge(tmp_path / "backup", json.loads(manifest(CONTENTS).encode()) | change, {})
    with pytest.raises(BackupError, match=why):
        read(tmp_path / "backup", ask, skip)


def test_no_file_gets_a_name_outside_the_directory() -> None:
    good = (
        "log/00000000000000000001.jsonl",
        "log/00000000000000000001-00000000000000000009.facts.jsonl",
        "tls/key.pem",
    )
    assert all(map(is_allowed, good))
    bad = (
        "log/x",
        "log/.open-00000000000000000001.jsonl",
        "keys/.hidden",
        "keys/a/b",
        "other/a",
        "keys/",
        "a",
        "keys/a\n",
    )
    assert not any(map(is_allowed, bad))


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    text = manifest({"keys/gateway.json": b""}).encode()
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for name, data in ((MANIFEST, text), (DIGEST, hashlib.sha256(text).hexdigest().encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("keys/gateway.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(BackupError, match=r"keys/gateway\.json is missing or damaged"):
        read(path, ask, skip)


def test_a_manifest_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "backup", "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        text = b"[" * 100_000
        for name, data in ((MANIFEST, text), (DIGEST, hashlib.sha256(text).hexdigest().encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(BackupError, match="its manifest is not valid"):
        read(tmp_path / "backup", ask, skip)


def test_control_characters_of_a_manifest_are_not_printed(tmp_path: Path) -> None:
    text = "\x07"
    contents = {"keys/gateway.json": b""}
    listed = json.loads(manifest(contents).encode()) | {"gateway": text, "origins": {"keys/a" + text: text}}
    forge(tmp_path / "backup", listed, contents)
    result = CliRunner().invoke(app, ["restore", str(tmp_path / "backup"), "--data", str(tmp_path / "data")])
    assert result.exit_code == 0
    assert text not in result.output


@pytest.mark.parametrize("type", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
def test_a_head_of_many_megabytes_is_not_read(tmp_path: Path, type: bytes) -> None:
    head = tarfile.TarInfo("x")
    head.type, head.size = type, 64 << 20
    with gzip.open(tmp_path / "backup", "wb", 1) as packed:
        packed.write(head.tobuf(tarfile.USTAR_FORMAT))
        packed.write(bytes(head.size))
    tracemalloc.start()
    try:
        with pytest.raises(BackupError, match="a header that no backup has"):
            read(tmp_path / "backup", ask, skip)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_list_of_holes_is_not_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo(MANIFEST)
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    with gzip.open(tmp_path / "backup", "wb") as packed:
        packed.write(member.tobuf(tarfile.PAX_FORMAT))
        packed.write(b"99999999\n" + b"1\n" * 10_000)
    with pytest.raises(BackupError, match="a header that no backup has"):
        read(tmp_path / "backup", ask, skip)


def test_a_file_with_a_long_name_is_restored(tmp_path: Path) -> None:
    contents = CONTENTS | {"files/" + "x" * 200: b"content"}
    make(tmp_path / "backup", contents)
    assert read(tmp_path / "backup", ask, skip) == manifest(contents)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("hello")
    with pytest.raises(BackupError, match="this is not a backup of Trellis"):
        read(tmp_path / "backup", ask, skip)


def test_a_restore_into_a_non_empty_folder_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "backup")
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("mine")
    with pytest.raises(BackupError, match="is not empty"):
        restore(tmp_path / "backup", data, ask)
    assert [path.name for path in data.iterdir()] == ["precious"]
    (data / "precious").unlink()
    restore(tmp_path / "backup", data, ask)
    assert (data / "log" / "00000000000000000900.jsonl").read_bytes() == b"short"
    modes = {path.stat().st_mode & 0o777 for path in data.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_a_restore_that_fails_while_it_writes_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "backup"
    make(path)
    checked = bundle.read

    def read_once(*arguments: Any) -> Manifest:
        found = checked(*arguments)
        path.write_bytes(path.read_bytes()[:-200])  # the disk fails between the check and the copy
        return found

    monkeypatch.setattr(bundle, "read", read_once)
    with pytest.raises(BackupError, match="near byte"):
        restore(path, tmp_path / "data", ask)
    assert [each.name for each in tmp_path.iterdir()] == ["backup"]
