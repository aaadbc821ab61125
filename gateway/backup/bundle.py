"""The file of a backup: a tar archive, compressed with gzip, and encrypted with age if there is a passphrase.

Its first member is the manifest, the second the manifest's SHA-256, and then come the files, in the manifest's order.
So each byte is checked when it is read, and whatever is damaged is named by its file and its place.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from zlib_ng import gzip_ng, zlib_ng

from . import age
from .errors import BackupError
from .manifest import MAX_BYTES, BackupFile, Manifest, decode
from .snapshot import Source

MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
LEVEL = 3  # of compression: the log shrinks to a fifth, at some 200 MB a second
PIECE = 1 << 20  # bytes that are read at once
MAX_HEAD = 4096  # bytes of what pax says about a member: a long name, or a size beyond 8 GiB
FOREIGN_TYPES = (*tarfile.GNU_TYPES, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
GZIP = b"\x1f\x8b"

AskPassphrase = Callable[[], str]
GzipFile: Any = gzip_ng.GzipNGFile  # it has no types
ZlibError: Any = zlib_ng.error  # nor has this


def entry_of(source: Source) -> BackupFile:
    """Return the manifest's entry for *source*, which is read to its end."""
    source.file.seek(0)
    digest = hashlib.sha256()
    left = source.size
    while left and (piece := source.file.read(min(PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    return BackupFile(source.name, source.size - left, digest.hexdigest())


def write(out: BinaryIO, manifest: Manifest, sources: Sequence[Source], passphrase: str | None = None) -> None:
    """Write the backup of *sources*, as the *manifest* lists them, to *out*."""
    with ExitStack() as stack:
        if passphrase is not None:
            out = cast(BinaryIO, stack.enter_context(age.EncryptedWriter(out, passphrase)))
        packed = stack.enter_context(GzipFile("", "wb", LEVEL, out, manifest.created // 1000))
        tar = stack.enter_context(tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT))
        listed = manifest.encode()
        about = [(MANIFEST, listed), (DIGEST, f"{hashlib.sha256(listed).hexdigest()}  {MANIFEST}\n".encode())]
        small = [Source(name, io.BytesIO(data), len(data)) for name, data in about]
        for source in (*small, *sources):
            source.file.seek(0)
            member = tarfile.TarInfo(source.name)
            member.size, member.mode, member.mtime = source.size, 0o600, manifest.created // 1000
            tar.addfile(member, source.file)


def read(path: Path, ask: AskPassphrase, take: Callable[[BackupFile, Iterator[bytes]], None]) -> Manifest:
    """Read the backup at *path* to its end, and check everything; *take* gets each file, and must read all of it.

    *ask* returns the passphrase; it is called only if the backup is encrypted. Raises `BackupError`, which names the
    place of any damage, or `OSError`.
    """
    with path.open("rb", buffering=0) as raw:
        counted = _Counted(raw)
        with _named_damage(path, counted), ExitStack() as stack:
            packed = stack.enter_context(GzipFile("", "rb", fileobj=_decrypted(counted, ask)))
            tar = stack.enter_context(tarfile.open(fileobj=packed, mode="r|", tarinfo=_Member))
            reader = _Members(tar, counted)
            listed = b"".join(reader.member(MANIFEST, None, MAX_BYTES))
            digest_line = b"".join(reader.member(DIGEST, None, 256))
            if digest_line.split()[:1] != [hashlib.sha256(listed).hexdigest().encode()]:
                raise BackupError("its manifest is damaged")
            manifest = decode(listed)
            for entry in manifest.files:
                take(entry, reader.member(entry.name, entry, entry.size))
            counted.inside = "the end"
            if reader.tar.next() is not None:
                raise BackupError("more follows than its manifest lists")
            while packed.read(PIECE):
                pass
            return manifest


def skip(_entry: BackupFile, pieces: Iterator[bytes]) -> None:
    """Read *pieces* only to check them: what `read` needs to check a backup."""
    for _ in pieces:
        pass


class _Counted(io.RawIOBase):
    """A file that counts the bytes that were read of it; *inside* is the member that they belong to."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__()
        self._raw = raw
        self.position = 0
        self.inside = "its beginning"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        size = self._raw.readinto(buffer) or 0  # type: ignore[arg-type]
        self.position += size
        return size


class _Member(tarfile.TarInfo):
    """A member whose head is short: tarfile keeps heads in memory, and 2 MB of an archive may be gigabytes of one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a head; raise `BackupError` if a long one follows."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in FOREIGN_TYPES or (member.type == tarfile.XHDTYPE and member.size > MAX_HEAD):
            raise BackupError("its archive has a header that no backup has")
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:  # of tarfile: reads a list of any length
        raise BackupError("its archive has a header that no backup has")


class _Members:
    """The members of an archive, which must come in the expected order."""

    def __init__(self, tar: tarfile.TarFile, counted: _Counted) -> None:
        self.tar = tar
        self._counted = counted

    def member(self, name: str, entry: BackupFile | None, most: int) -> Iterator[bytes]:
        """The content of the next member, which must be called *name* and, if there is an *entry*, match it."""
        self._counted.inside = name
        found = self.tar.next()
        if found is None or found.name != name or not found.isreg() or found.size > most:
            raise BackupError(f"{name} is missing or damaged")
        file = self.tar.extractfile(found)
        assert file is not None
        digest, size = hashlib.sha256(), 0
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
            yield piece
        if entry is not None and (size, digest.hexdigest()) != (entry.size, entry.sha256):
            raise BackupError(f"{name} is damaged: its checksum does not match")


def _decrypted(counted: _Counted, ask: AskPassphrase) -> BinaryIO:
    """The compressed archive, decrypted if need be."""
    file = io.BufferedReader(counted, age.CHUNK)
    start = file.peek(len(age.MAGIC))
    if start.startswith(age.MAGIC):
        return io.BufferedReader(age.EncryptedReader(file, ask()), PIECE)
    if not start.startswith(GZIP):
        raise BackupError("this is not a backup of Trellis, or its first bytes are damaged")
    return file


@contextmanager
def _named_damage(path: Path, counted: _Counted) -> Iterator[None]:
    """Raise every error in reading as a `BackupError` that names the place."""
    try:
        yield
    except (BackupError, EOFError, ValueError, ZlibError, tarfile.TarError, gzip.BadGzipFile) as error:
        reason = str(error)
        if isinstance(error, EOFError) or "end of data" in reason or "end-of-stream" in reason:
            reason = "it is cut off"
        at = f"near byte {counted.position:,}, in {counted.inside}"
        raise BackupError(f"{path}: {reason} ({at})") from None
