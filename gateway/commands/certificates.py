"""`trellis dev-cert`: creates a certificate for TLS, and a local certificate authority that issues it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.access.authorization import read_secret, write_secret

from .common import AsJson, CommandError, fields, say, show

AUTHORITY: Final = ("ca.pem", "ca-key.pem")
CERTIFICATE: Final = ("cert.pem", "key.pem")
NAMES: Final = ("localhost",)
ADDRESSES: Final = ("127.0.0.1", "::1")
AUTHORITY_DAYS: Final = 3650
SKEW: Final = timedelta(hours=1)  # certificates begin earlier, for machines whose clocks are behind

# fmt: off
USES: Final = {
    True:  x509.KeyUsage(key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
                         key_encipherment=False, data_encipherment=False, key_agreement=False,
                         encipher_only=False, decipher_only=False),
    False: x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False,
                         key_encipherment=False, data_encipherment=False, key_agreement=False,
                         encipher_only=False, decipher_only=False),
}
# fmt: on


class Issuer(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def dev_cert(
    name: Annotated[
        list[str] | None, typer.Option(help="A name of the machine; can be repeated.  [default: localhost]")
    ] = None,
    address: Annotated[
        list[str] | None, typer.Option(help="An IP address of the machine; can be repeated.  [default: 127.0.0.1 ::1]")
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("certs"),
    days: Annotated[int, typer.Option(min=1, max=825, help="How many days the certificate is valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Create a certificate for TLS, issued by a local authority.

    Writes cert.pem and key.pem for the gateway, and ca.pem and ca-key.pem for the authority. An existing authority in
    the folder is used again, so several gateways can share one. Clients have to trust ca.pem. Keys have mode 0600, and
    no file is overwritten.

    \b
    Examples:
      trellis dev-cert
      trellis dev-cert --name bridge.example.org --address 192.0.2.7
    """
    names = (name or ([] if address else list(NAMES))) + (address or ([] if name else list(ADDRESSES)))
    subjects = [_subject(text) for text in names]
    certificate, key = (folder / file for file in CERTIFICATE)
    for path in (certificate, key):
        if path.exists():
            raise CommandError(f"{path} exists already; move it away or choose another --folder")
    issuer = _authority(*(folder / file for file in AUTHORITY))
    made = _issue(names[0], subjects, days, issuer)
    _write(made, certificate, key)
    found = {"certificate": str(certificate), "key": str(key), "authority": str(folder / AUTHORITY[0])}
    show(found, as_json, fields(found))
    say(f"serve with it: trellis serve --tls-cert {certificate} --tls-key {key}")


def _subject(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a name nor an address", param_hint="--name") from None


def _authority(certificate: Path, key: Path) -> Issuer:
    """Load the authority from these files, or create it."""
    if certificate.exists() != key.exists():
        raise CommandError(f"only one of {certificate} and {key} exists; move it away or choose another --folder")
    if not certificate.exists():
        made = _issue("Trellis development authority", (), AUTHORITY_DAYS, None)
        _write(made, certificate, key)
        return made
    secret = read_secret(key)
    try:
        found = load_pem_private_key(secret, None)
        issuer = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError) as error:
        raise CommandError(f"{certificate} and {key} are not an authority ({error}); move them away") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or found.public_key() != issuer.public_key():
        raise CommandError(f"{key} is not the key of {certificate}; move both away")
    return Issuer(issuer, found)


def _issue(common: str, subjects: list[x509.GeneralName] | tuple[()], days: int, issuer: Issuer | None) -> Issuer:
    """Create a key and a certificate for it, issued by *issuer*; without one, a self-signed authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    public, signer = key.public_key(), key if issuer is None else issuer.key
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer.certificate.subject if issuer else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(USES[issuer is None], True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(subjects), False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
        )
    return Issuer(builder.sign(signer, SHA256()), key)


def _write(made: Issuer, certificate: Path, key: Path) -> None:
    try:
        write_secret(key, made.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        certificate.write_bytes(made.certificate.public_bytes(Encoding.PEM))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or key}: {error.strerror}") from None
