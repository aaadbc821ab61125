"""The mixed load: bursts, lone messages and history reads, a third of the requests each, over all four protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from .mixed_parties import MixedClient, MixedRelayClient, MixedRestClient, MixedSproutClient, MixedStreamrClient
from .servers import BenchmarkServer
from .sprout_nodes import trees
from .streamr_load import SignedMessages
from .workload import Bench, CountedLoad

EACH = 16  # messages of a burst; lone messages; reads


class Mixed(CountedLoad):
    """Each party does *cycles* times: a burst, as many lone messages, as many reads; all parties at the same time.

    The amount of work is fixed, so the mixture does not depend on how fast each part of it is.
    """

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles
        self._sign = SignedMessages((cycles + 1) * 2 * EACH, MixedStreamrClient.STREAM)

    def renew(self, bench: Bench) -> None:  # noqa: ARG002
        """Sign the messages and the nodes of the next round."""
        self._messages = self._sign()
        (self._tree,) = trees(1, (self.cycles + 1) * 2 * EACH)

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Connect everybody, and let each party do one cycle."""
        with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
            parties = [
                stack.enter_context(closing(party))
                for party in (
                    MixedRelayClient(server),
                    MixedStreamrClient(server, self._messages),
                    MixedSproutClient(server, self._tree),
                    MixedRestClient(server),
                )
            ]

            def run(cycles: int) -> int:
                return sum(threads.map(lambda party: _play(party, cycles), parties))

            run(1)
            for party in parties:
                party.settle()
            yield lambda: run(self.cycles)


def _play(party: MixedClient, cycles: int) -> int:
    """Do the cycles; return the number of requests."""
    for _ in range(cycles):
        party.say(EACH)
        for _ in range(EACH):
            party.say(1)
        for _ in range(EACH):
            party.read()
    return cycles * 3 * EACH
