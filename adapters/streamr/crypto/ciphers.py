"""The ciphers of the key exchange, as the libraries write them: AES-256-CTR and RSA-OAEP, in hexadecimal digits.

What is encrypted with AES is 16 bytes of initialisation vector and the ciphertext, without a MAC: the message's
signature protects its integrity. OAEP is with SHA-1, the default of Node's `publicEncrypt`.
"""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA1

KEY_BYTES = 32  # of a group key (AES-256)
IV_BYTES = 16
RSA_BITS = 3072  # of the gateway's own pair: as strong as the group keys' curve; genuine clients use 4096
MIN_RSA_BITS, MAX_RSA_BITS = 1024, 8192  # of the key in a request
MAX_PEM = 4096  # characters of such a key

_OAEP = padding.OAEP(mgf=padding.MGF1(SHA1()), algorithm=SHA1(), label=None)


def aes_encrypt(plain: bytes, key: bytes, iv: bytes) -> str:
    """*plain* under *key*; an *iv* (16 bytes) must never be used for two texts."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor()
    return (iv + encryptor.update(plain) + encryptor.finalize()).hex()


def aes_decrypt(digits: str, key: bytes) -> bytes:
    """What `aes_encrypt` was given, or noise under another key; `ValueError` if *digits* are malformed."""
    data = bytes.fromhex(digits)
    if len(data) < IV_BYTES:
        raise ValueError("shorter than its initialisation vector")
    decryptor = Cipher(algorithms.AES(key), modes.CTR(data[:IV_BYTES])).decryptor()
    return decryptor.update(data[IV_BYTES:]) + decryptor.finalize()


def rsa_encrypt(plain: bytes, public_key: str) -> str:
    """*plain* (a group key) for the owner of *public_key* (PEM); `ValueError` if that is not a valid key."""
    if len(public_key) > MAX_PEM:
        raise ValueError(f"an RSA public key of more than {MAX_PEM} characters")
    try:
        key = serialization.load_pem_public_key(public_key.encode())
    except (UnsupportedAlgorithm, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, rsa.RSAPublicKey) or not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise ValueError(f"not an RSA public key of {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    return key.encrypt(plain, _OAEP).hex()


class RsaPair:
    """An RSA key pair that lives as long as the process. Making one takes a second."""

    def __init__(self, private: rsa.RSAPrivateKey | None = None) -> None:
        self._private = private or rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = self._private.public_key().public_bytes(serialization.Encoding.PEM, form).decode()

    def decrypt(self, digits: str) -> bytes:
        """Decrypt *digits*, encrypted for `public`; `ValueError` if they were not."""
        return self._private.decrypt(bytes.fromhex(digits), _OAEP)
