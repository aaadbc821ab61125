"""Signs deliveries as Standard Webhooks has it: HMAC-SHA256 over the message's id, the time and the body.

Secrets are derived from the secret of the gateway, so no file has them: that of a webhook is a function of its id and
its generation, which is raised to rotate it. The specification is https://www.standardwebhooks.com.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "whsec_"  # of a secret as people see it
VERSION: Final = "v1"  # of a symmetric signature


def derive_secret(gateway_secret: bytes, webhook: str, generation: int) -> bytes:
    """Return the 32 bytes of the secret of the webhook with this id, in its *generation*."""
    return hmac.digest(gateway_secret, f"webhook {webhook} {generation}".encode(), "sha256")


def encode_secret(secret: bytes) -> str:
    """Return *secret* as receivers get it: text with a prefix."""
    return PREFIX + b64encode(secret).decode()


def sign(secret: bytes, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of *body*, sent at *timestamp* (seconds since 1970) as the message with this *id*."""
    mac = hmac.digest(secret, f"{id}.{timestamp}.".encode() + body, "sha256")
    return f"{VERSION},{b64encode(mac).decode()}"


def signature_headers(secrets: Iterable[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that carry one signature for each of *secrets*; while a secret is rotated there are two."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(secret, id, timestamp, body) for secret in secrets),
    }
