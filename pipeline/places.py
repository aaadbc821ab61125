"""Where tables are: in a directory of a file system, or below a prefix of an object store (S3).

The variables that all programs for S3 use name the store, its region and its keys: `AWS_ENDPOINT_URL`, `AWS_REGION`,
`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. An object appears whole or not at all, so nothing has to be renamed or
synced there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES: Final = ("s3a://", "s3://")  # the same store; Hadoop calls it by the first, the others by the second
ENDPOINT: Final = "AWS_ENDPOINT_URL"
ATTEMPTS: Final = 8  # of a request, with longer and longer pauses between them
CONNECT_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 60.0  # for an answer of the store
_PATTERN: Final = re.compile(r"[\\*?\[\]{}]")


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object, or the prefix of some; *key* begins with the bucket. It has what the pipeline needs of a `Path`."""

    key: str

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{SCHEMES[0]}{self.key}"

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The prefix before the last slash."""
        return ObjectPath(self.key.rpartition("/")[0])


Place = Path | ObjectPath


def place(text: str) -> Place:
    """Parse a directory, or `s3a://BUCKET/PREFIX`."""
    for scheme in SCHEMES:
        if text.startswith(scheme):
            return ObjectPath(text.removeprefix(scheme).strip("/"))
    return Path(text)


def filesystem(at: Place, attempts: int = ATTEMPTS) -> tuple[FileSystem, str]:
    """Return the file system of *at*, and its path there; a store is asked *attempts* times."""
    from pyarrow.fs import LocalFileSystem

    return (LocalFileSystem(), str(at)) if isinstance(at, Path) else (_store(attempts), at.key)


def storage_options(at: Place) -> dict[str, str] | None:
    """Return the options of *at* for the package `deltalake`, which knows the variables of the environment."""
    if isinstance(at, Path) or not os.environ.get(ENDPOINT, "").startswith("http:"):
        return None
    return {"allow_http": "true"}


def files_in(folder: Place, *, below: bool = False) -> list[Place]:
    """Return the files in *folder* by name, with those in folders *below* it if asked; none if it does not exist."""
    from pyarrow.fs import FileSelector, FileType

    system, path = filesystem(folder)
    found = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=below))
    names = sorted(info.path.removeprefix(f"{path}/") for info in found if info.type == FileType.File)
    return [folder / name for name in names]


def remove_file(file: Place) -> None:
    """Delete *file*."""
    system, path = filesystem(file)
    system.delete_file(path)


def remove_folder(folder: Place) -> None:
    """Delete *folder* and everything in it."""
    system, path = filesystem(folder)
    system.delete_dir(path)


def exists(at: Place, attempts: int = ATTEMPTS) -> bool:
    """Whether there is a file, a folder or a bucket *at*; raise `OSError` if the store cannot be asked."""
    from pyarrow.fs import FileType

    system, path = filesystem(at, attempts)
    return bool(system.get_file_info(path).type != FileType.NotFound)


def read(file: Place, attempts: int = ATTEMPTS) -> bytes | None:
    """Return the contents of *file*, None if there is none; raise `OSError` if it cannot be read."""
    system, path = filesystem(file, attempts)
    try:
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def put(file: ObjectPath, data: bytes) -> None:
    """Write the object *file*."""
    system, path = filesystem(file)
    with system.open_output_stream(path) as stream:
        stream.write(data)


def escape_glob(at: Place | str) -> str:
    """Return *at* for Spark, with the characters escaped that Spark takes for patterns."""
    return _PATTERN.sub(r"\\\g<0>", str(at))


def local_folder(at: ObjectPath, cache_home: Path) -> Path:
    """Return the folder below *cache_home* for the locks and the report of the warehouse *at*."""
    return cache_home / "trellis" / f"warehouse-{sha256(at.key.encode()).hexdigest()[:16]}"


@cache
def _store(attempts: int) -> FileSystem:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    endpoint = os.environ.get(ENDPOINT, "")
    scheme, _, host = endpoint.rpartition("://")
    return S3FileSystem(
        endpoint_override=host or None,
        scheme=scheme or "https",
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=attempts),
        check_directory_existence_before_creation=True,
    )
