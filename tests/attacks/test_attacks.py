"""The first half of the table of attacks, against one gateway with default settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.attacks.attack import Attack
from tests.attacks.reused_stage import USUAL, ReusedStage, reused_stage, rows
from tests.attacks.wire import Raw
from tests.waiting import until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReusedStage]:
    with reused_stage(tmp_path_factory.mktemp("attacks")) as made:
        yield made


def test_earlier_attackers_are_gone_when_an_attack_begins(gateway: ReusedStage) -> None:
    """What the gateway still reads of them is none of its cost: after `bodies`, `tracker` had up to 135 MiB."""
    gateway.stage.rest()
    before, peer, hung_up = gateway.stage.attacker_connections, Raw(gateway.stage.target.http), threading.Event()

    def hang_up() -> None:
        hung_up.set()
        peer.socket.close()

    until(lambda: gateway.stage.attacker_connections > before)  # the gateway has accepted the connection
    hanging_up = threading.Timer(0.5, hang_up)
    hanging_up.start()
    gateway.stage.rest()
    assert hung_up.is_set()
    hanging_up.join()
    gateway.stage.rest()
    assert gateway.stage.attacker_connections == 0


@pytest.mark.parametrize("attack", rows(USUAL[::2]))
def test_its_bounds_hold(gateway: ReusedStage, attack: Attack) -> None:
    outcome = gateway.play(attack)
    assert outcome.faults() == [], (outcome.report, outcome.cost, outcome.wait)
