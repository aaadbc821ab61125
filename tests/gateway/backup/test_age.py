"""Files in the age format are exchanged with another implementation, and damaged ones are refused."""

from __future__ import annotations

import io
import os

import pyrage
import pytest

from gateway.backup.age import CHUNK, MAGIC, MAX_WORK_FACTOR, TAG, EncryptedReader, EncryptedWriter
from gateway.backup.errors import BackupError

PASSPHRASE = "correct horse"
QUICK = 10  # the work factor of scrypt: a millisecond in the place of a second
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7]


def encrypt(plain: bytes, factor: int = QUICK) -> bytes:
    out = io.BytesIO()
    with EncryptedWriter(out, PASSPHRASE, factor) as writer:
        for at in range(0, len(plain), 50_000):
            writer.write(plain[at : at + 50_000])
    return out.getvalue()


def decrypt(data: bytes, passphrase: str = PASSPHRASE) -> bytes:
    return io.BufferedReader(EncryptedReader(io.BytesIO(data), passphrase)).read()


def content(size: int) -> bytes:
    return bytes(at * 7 % 251 for at in range(size))


@pytest.mark.parametrize("size", SIZES)
def test_another_implementation_reads_our_files(size: int) -> None:
    sealed = encrypt(content(size))
    assert pyrage.passphrase.decrypt(sealed, PASSPHRASE) == content(size) == decrypt(sealed)


@pytest.mark.slow
@pytest.mark.skipif("TRELLIS_SOAK" not in os.environ, reason="their scrypt takes seconds; `make soak` runs it")
def test_files_of_another_implementation_are_read() -> None:
    plain = content(2 * CHUNK)
    assert decrypt(pyrage.passphrase.encrypt(plain, PASSPHRASE)) == plain


def test_no_two_files_are_alike() -> None:
    assert encrypt(b"the same") != encrypt(b"the same")


def test_a_wrong_passphrase_gets_the_error_of_a_damaged_header() -> None:
    with pytest.raises(BackupError, match="the passphrase is wrong, or its header is damaged"):
        decrypt(encrypt(b"psst"), "battery staple")


def test_every_changed_byte_is_noticed() -> None:
    sealed = encrypt(content(CHUNK + 100))
    header = sealed.index(b"---")
    places = [*range(len(MAGIC), header + 90), *range(header + 90, len(sealed), 4099), len(sealed) - 1]
    for at in places:
        changed = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with pytest.raises(BackupError):
            decrypt(changed)


def test_unused_bits_of_the_header_are_noticed_too() -> None:
    sealed = encrypt(b"x")
    last = sealed.index(b"---") + len(b"--- ") + 42  # of 43 characters of base64 for the 32 bytes of the MAC
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = alphabet[alphabet.index(sealed[last]) + 1]  # the same bytes, spelt in another way
    with pytest.raises(BackupError, match="its header is damaged"):
        decrypt(sealed[:last] + bytes((other,)) + sealed[last + 1 :])


def test_a_file_that_is_cut_off_is_refused_wherever_it_is_cut() -> None:
    sealed = encrypt(content(2 * CHUNK))
    body = len(sealed) - 2 * (CHUNK + TAG)
    for size in (*range(0, body, 9), body, body + 1, body + CHUNK + TAG, body + CHUNK + TAG + 1, len(sealed) - 1):
        with pytest.raises(BackupError):
            decrypt(sealed[:size])


def test_chunks_cannot_be_exchanged() -> None:
    sealed = encrypt(content(3 * CHUNK))
    first = len(sealed) - 3 * (CHUNK + TAG)
    chunks = [sealed[first + n * (CHUNK + TAG) : first + (n + 1) * (CHUNK + TAG)] for n in range(3)]
    with pytest.raises(BackupError, match="chunk 0 "):
        decrypt(sealed[:first] + chunks[1] + chunks[0] + chunks[2])


def test_a_header_cannot_ask_for_endless_work() -> None:
    sealed = encrypt(b"x").replace(b" %d\n" % QUICK, b" %d\n" % (MAX_WORK_FACTOR + 1))
    with pytest.raises(BackupError, match="more work than is allowed"):
        decrypt(sealed)
