"""Encryption with a passphrase in the age format, version 1 (age-encryption.org/v1, recipient type `scrypt`).

The program `age` and its libraries read what this writes, and the other way round. The header has the file key,
wrapped with a key that scrypt derives from the passphrase, and a MAC. The payload is cut into chunks of 64 KiB, each
encrypted with ChaCha20-Poly1305; the nonce is the chunk's number and a byte that marks the last chunk, so chunks cannot
be changed, exchanged or cut off unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import secrets
from typing import BinaryIO

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from .errors import BackupError

MAGIC = b"age-encryption.org/v1\n"
CHUNK = 64 << 10  # bytes of plain text in each chunk but the last
TAG = 16  # bytes that encryption adds to a chunk
WORK_FACTOR = 18  # the logarithm of scrypt's N: about a second and 256 MiB, as the program age chooses
MAX_WORK_FACTOR = 20  # of a file that is read; a higher one would take more than a GiB
MAX_HEADER_LINE = 128  # bytes
SCRYPT_LABEL = b"age-encryption.org/v1/scrypt"

_STANZA = re.compile(rb"-> scrypt ([A-Za-z0-9+/]{22}) ([1-9][0-9]?)\n")


class EncryptedWriter(io.RawIOBase):
    """Encrypts what is written to it, and writes that to *out*, which stays open. `close` writes the last chunk."""

    def __init__(self, out: BinaryIO, passphrase: str, work_factor: int = WORK_FACTOR) -> None:
        super().__init__()
        file_key, salt, nonce = secrets.token_bytes(16), secrets.token_bytes(16), secrets.token_bytes(16)
        wrapped = _wrapping(passphrase, salt, work_factor).encrypt(bytes(12), file_key, None)
        header = MAGIC + b"-> scrypt %b %d\n%b\n---" % (_encode(salt), work_factor, _encode(wrapped))
        out.write(header + b" " + _encode(_mac(file_key, header).finalize()) + b"\n" + nonce)
        self._out = out
        self._cipher = _payload_cipher(file_key, nonce)
        self._number = 0
        self._waiting = bytearray()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Encrypt all chunks that *data*, an object with bytes, completes; the last chunk stays for `close`."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._waiting += view
        while len(self._waiting) > CHUNK:
            self._write_chunk(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return len(view)

    def close(self) -> None:
        """Write the last chunk, once."""
        if not self.closed:
            self._write_chunk(bytes(self._waiting), last=True)
            self._waiting.clear()
        super().close()

    def _write_chunk(self, data: bytes, *, last: bool) -> None:
        self._out.write(self._cipher.encrypt(_nonce(self._number, last), data, None))
        self._number += 1


class EncryptedReader(io.RawIOBase):
    """Reads what `EncryptedWriter` wrote, from *file*; raises `BackupError` if it is damaged, cut off or another's."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        super().__init__()
        file_key = _unwrap(file, passphrase)
        nonce = file.read(16)
        if len(nonce) < 16:
            raise BackupError("it is cut off in its header")
        self._file = file
        self._cipher = _payload_cipher(file_key, nonce)
        self._number = 0
        self._ahead = file.read(CHUNK + TAG)
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Decrypt the next chunk if none is left, and fill *buffer* from it; 0 at the end."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if not self._plain and (self._ahead or not self._number):
            self._plain = memoryview(self._next_chunk())
        size = min(len(view), len(self._plain))
        view[:size], self._plain = self._plain[:size], self._plain[size:]
        return size

    def _next_chunk(self) -> bytes:
        chunk, self._ahead = self._ahead, self._file.read(CHUNK + TAG)
        try:
            plain = self._cipher.decrypt(_nonce(self._number, last=not self._ahead), chunk, None)
        except InvalidTag:
            raise BackupError(f"chunk {self._number} of the encrypted data is damaged, or was cut off") from None
        self._number += 1
        return plain


def _unwrap(file: BinaryIO, passphrase: str) -> bytes:
    """The file key, from the header of *file*."""
    lines = [file.readline(MAX_HEADER_LINE) for _ in range(4)]
    stanza = _STANZA.fullmatch(lines[1])
    if lines[0] != MAGIC or stanza is None or not lines[3].startswith(b"--- ") or not lines[3].endswith(b"\n"):
        raise BackupError("its header is damaged, or it is not encrypted with a passphrase")
    if (factor := int(stanza[2])) > MAX_WORK_FACTOR:
        raise BackupError(f"its header asks for more work than is allowed (2^{factor})")
    try:
        file_key = _wrapping(passphrase, _decode(stanza[1]), factor).decrypt(bytes(12), _decode(lines[2][:-1]), None)
        _mac(file_key, b"".join(lines[:3]) + b"---").verify(_decode(lines[3][4:-1]))
    except (InvalidTag, InvalidSignature, binascii.Error, ValueError):
        raise BackupError("the passphrase is wrong, or its header is damaged") from None
    return file_key


def _wrapping(passphrase: str, salt: bytes, factor: int) -> ChaCha20Poly1305:
    key = Scrypt(salt=SCRYPT_LABEL + salt, length=32, n=1 << factor, r=8, p=1).derive(passphrase.encode())
    return ChaCha20Poly1305(key)


def _payload_cipher(file_key: bytes, nonce: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), 32, nonce, b"payload").derive(file_key))


def _mac(file_key: bytes, header: bytes) -> HMAC:
    mac = HMAC(HKDF(SHA256(), 32, b"", b"header").derive(file_key), SHA256())
    mac.update(header)
    return mac


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11) + bytes((last,))


def _encode(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    """Decode *text*, which must be canonical; raises `ValueError`."""
    data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    if _encode(data) != text:
        raise ValueError("base64 with unused bits that are not zero")
    return data
