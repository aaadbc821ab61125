"""The messages of Sprout for `/asyncapi.json`, made from the table of verbs."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.adapter import WireMessage

from .codec import VERBS

WORD = r"[^ \n]+"


def messages() -> Iterator[WireMessage]:
    """Describe each verb: a line of fields, the last of which counts the lines of the body, if it has one."""
    for name, verb in VERBS.items():
        lines = [" ".join([name.decode(), *[WORD] * len(verb.fields)])]
        if verb.body is not None:
            lines.append("(" + " ".join([WORD] * verb.body.words))
        pattern = r"\n".join(lines) + r"\n" + (")*" if verb.body is not None else "")
        schema = {"type": "string", "pattern": f"^{pattern}$"}
        summary = (verb.frame.__doc__ or "").partition("\n")[0]
        yield WireMessage(name.decode(), schema, summary, media_type="text/plain")
