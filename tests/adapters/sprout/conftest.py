"""Settings of the Sprout tests."""

from __future__ import annotations

from hypothesis import settings

# Some examples make or check RSA signatures, and machines are busy: an example may take as long as it takes.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
