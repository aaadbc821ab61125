"""What is said in Sprout, described for programs, from the table of verbs."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.adapter import WireMessage

from .codec import VERBS

WORD = r"[^ \n]+"


def messages() -> Iterator[WireMessage]:
    """A message is a line of a verb and its fields; where it has a body, the last of them counts the lines behind."""
    for name, verb in VERBS.items():
        lines = [" ".join([name.decode(), *[WORD] * len(verb.fields)])]
        if verb.body is not None:
            lines.append("(" + " ".join([WORD] * verb.body.words))
        pattern = r"\n".join(lines) + r"\n" + (")*" if verb.body is not None else "")
        schema = {"type": "string", "pattern": f"^{pattern}$"}
        summary = (verb.frame.__doc__ or "").partition("\n")[0]
        yield WireMessage(name.decode(), schema, summary, media_type="text/plain")
