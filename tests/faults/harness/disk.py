"""What happens to the files of a gateway that is down: what a power cut takes, and unexpected damage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from .checks import OPEN, Record, records
from .ledger import token_of
from .retired import removed_files_of
from .shim import Control

SECTOR = 512  # bytes
FACTS = ".facts.jsonl"
TEMPORARY = ".retire-"


@dataclass
class Damage:
    """The records that were damaged, and the last that is whole. *index*: so was the index.

    Nobody reads a file that is *unread*: its facts are beside it, and the next start removes it.
    """

    records: list[Record] = field(default_factory=list)
    last: int = 0
    index: bool = False
    unread: bool = False

    @property
    def tokens(self) -> set[str]:
        """Whose messages they were."""
        return {token_of(record.fields.get("content")) for record in self.records} - {""}

    @property
    def seqs(self) -> set[int]:
        """Their numbers."""
        return {record.seq for record in self.records}

    @property
    def roots(self) -> bool:
        """Whether something may be among them that others hang on: facts, and nodes."""
        return any(
            record.fields["kind"] != "message" or record.fields["protocol"] == "sprout" for record in self.records
        )


def cut_power(control: Control, log: Path, chance: random.Random) -> set[int]:
    """Take away what was never synced: ends of files, some of it torn, and names; what was removed comes back.

    Returns the records that are torn although others behind them are whole: they are holes from now on. Nothing of
    them was accepted, so no message counts as damaged.
    """
    before = {record.seq for record in records(log)}
    known = control.files()
    for path in sorted(removed_files_of(log.parent).glob("*.jsonl")):
        file = known.get(path.stat().st_ino)
        if file is not None and file.unlinked and chance.random() < 0.5 and not (log / path.name).exists():
            (log / path.name).hardlink_to(path)
    for path in sorted(log.glob("*.jsonl")):
        about = path.stat()
        if (file := known.get(about.st_ino)) is None:
            continue
        if about.st_size > file.synced:
            kept = chance.randint(file.synced, about.st_size)
            data = bytearray(path.read_bytes()[:kept])
            if kept > file.synced and chance.random() < 0.5:
                data[chance.randrange(file.synced, kept)] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        if file.unnamed and chance.random() < 0.5:
            path.unlink()
        elif file.renamed and chance.random() < 0.5:
            path.rename(path.with_name(_before(path.name)))
    after = {record.seq for record in records(log)}
    return {seq for seq in before - after if seq < max(after, default=0)}


def _before(name: str) -> str:
    """What a file was called before it was renamed."""
    return TEMPORARY + name[:20] if name.endswith(FACTS) else OPEN + name


def damage(kind: str, data: Path, chance: random.Random) -> Damage:
    """Damage the files in *data* as *kind* names it; reading the log before and after finds the records damaged."""
    log = data / "log"
    before = records(log)
    if kind.endswith("index") or kind == "no journal":
        _damage_index(kind, data / "index.sqlite", chance)
    elif before:
        sealed = [record for record in before if not record.path.name.startswith(OPEN)]
        opened = [record for record in before if record.path.name.startswith(OPEN)]
        _damage_log(kind, chance.choice((opened if "open" in kind else sealed) or before), chance)
    after = {record.seq: record.fields for record in records(log)}
    damaged = [record for record in before if after.get(record.seq) != record.fields]
    unread = all(record.path.with_name(record.path.name.replace(".jsonl", FACTS)).exists() for record in damaged)
    return Damage(damaged, max(after, default=0), kind.endswith("index") or kind == "no journal", unread)


def _damage_log(kind: str, record: Record, chance: random.Random) -> None:
    data = bytearray(record.path.read_bytes())
    place = record.offset + chance.randrange(1, record.size - 1)
    if kind.startswith("cut"):
        del data[place:]
    elif kind == "zeros":
        end = min(place + SECTOR, len(data))
        data[place:end] = bytes(end - place)
    else:
        data[place] ^= 1 << chance.randrange(8)
    record.path.write_bytes(data)


def _damage_index(kind: str, path: Path, chance: random.Random) -> None:
    journal = path.with_name(path.name + "-wal")
    if kind == "no index":
        path.unlink()
        return
    if kind == "no journal":
        journal.unlink(missing_ok=True)
        return
    target = journal if journal.exists() and journal.stat().st_size and chance.random() < 0.3 else path
    data = bytearray(target.read_bytes())
    place = chance.randrange(len(data))
    if kind == "cut index":
        del data[place:]
    elif kind == "garbage in index":
        end = min(place + SECTOR, len(data))
        data[place:end] = chance.randbytes(end - place)
    else:
        data[place] ^= 1 << chance.randrange(8)
    target.write_bytes(data)
