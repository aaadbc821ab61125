from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.core.channels import LIMIT, MAX_NAME, NAMES_FACTOR, Channels, valid_name
from gateway.core.errors import TooManyChannels, UnknownChannel


class Capitals:
    """The address is the name in capitals; where that is taken, with marks behind it."""

    name = "capitals"

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        address = channel.upper()
        while taken(address):
            address += "!"
        return address

    def channel(self, address: str) -> str | None:
        return address.lower()


class Minted:
    """Addresses are made, not derived."""

    name = "minted"

    def address(self, _channel: str, _taken: Callable[[str], bool]) -> str | None:
        return None

    def channel(self, _address: str) -> str | None:
        return None


class Desk:
    """A table and the facts it has written."""

    def __init__(
        self, *, create: bool = True, limit: int = LIMIT, protocols: tuple[str, ...] = ("capitals", "minted")
    ) -> None:
        self.kept: set[str] = set()  # the channels of which a message is kept
        self.facts: list[tuple[str, dict[str, str], bool]] = []
        rules: list[Any] = [rule for rule in (Capitals(), Minted()) if rule.name in protocols]
        self.table = Channels(rules, self._record, create=create, limit=limit, kept=self.kept.intersection)

    def restarted(self, **options: object) -> Desk:
        """What the log's facts make of it."""
        again = Desk(**options)  # type: ignore[arg-type]
        for name, addresses, is_open in {fact[0]: fact for fact in self.facts}.values():
            again.table.restore(name, addresses, open=is_open)
        return again

    def _record(self, channel: str, addresses: Mapping[str, str], is_open: bool) -> None:
        self.facts.append((channel, dict(addresses), is_open))


@pytest.mark.parametrize("name", ["a", "x" * MAX_NAME, "gateway/x", "a b", "naïve ☃ 😀", "\u200b", "@/"])
def test_names(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\nb", "\0", "\x7f", "\x85", "a/@b", "\ud800"])
def test_what_is_no_name(name: str) -> None:
    assert not valid_name(name)
    with pytest.raises(UnknownChannel):
        Desk().table.hold(name)


def test_looking_up_makes_nothing() -> None:
    desk = Desk()
    assert desk.table.channel("capitals", "LOBBY") == "lobby"
    assert desk.table.address("capitals", "lobby") == "LOBBY"
    assert desk.table.address("minted", "lobby") is None
    assert desk.table.addresses("lobby") == {"capitals": "LOBBY"}
    assert not desk.table.exists("lobby")
    assert (desk.facts, desk.table.registered()) == ([], [])
    with pytest.raises(UnknownChannel):
        desk.table.channel("minted", "anything")
    with pytest.raises(UnknownChannel):
        desk.table.channel("capitals", "")


def test_entering_is_memory_only_and_settling_a_fact() -> None:
    desk = Desk()
    desk.table.hold("lobby")
    assert not desk.table.exists("lobby")
    desk.table.release("lobby")
    assert desk.facts == []
    desk.table.register("lobby")
    desk.table.register("lobby")
    desk.table.release("lobby")
    assert desk.table.registered() == ["lobby"]
    assert desk.facts == [("lobby", {"capitals": "LOBBY"}, True)]
    assert desk.restarted().table.registered() == ["lobby"]


def test_two_channels_never_share_an_address() -> None:
    desk = Desk()
    desk.table.register("lobby")
    desk.table.register("LOBBY")
    assert desk.table.address("capitals", "LOBBY") == "LOBBY!"
    assert desk.table.channel("capitals", "LOBBY!") == "LOBBY"
    assert desk.table.channel("capitals", "LOBBY") == "lobby"
    again = desk.restarted().table
    assert again.channel("capitals", "LOBBY!") == "LOBBY"
    again.hold("Lobby")
    assert again.address("capitals", "Lobby") == "LOBBY!!"
    again.release("Lobby")
    assert again.channel("capitals", "LOBBY!!") == "lobby!!"


def test_assigned_addresses() -> None:
    desk = Desk()
    desk.table.assign("minted", "lobby", "0xabc")
    desk.table.assign("minted", "lobby", "0xabc")
    assert desk.facts == [("lobby", {"capitals": "LOBBY", "minted": "0xabc"}, True)]
    assert desk.table.channel("minted", "0xabc") == "lobby"
    with pytest.raises(ValueError, match="already"):
        desk.table.assign("minted", "other", "0xabc")
    again = desk.restarted().table
    assert again.channel("minted", "0xabc") == "lobby"
    assert again.addresses("lobby") == {"capitals": "LOBBY", "minted": "0xabc"}


def test_a_closed_channel_is_off_the_list_until_somebody_uses_it() -> None:
    desk = Desk()
    desk.table.close("lobby")
    desk.table.assign("minted", "lobby", "0xabc")
    desk.table.close("lobby")
    desk.table.close("lobby")
    assert (desk.table.exists("lobby"), len(desk.facts)) == (False, 2)
    again = desk.restarted()
    assert not again.table.exists("lobby")
    assert again.table.channel("minted", "0xabc") == "lobby"
    again.table.hold("lobby")
    again.table.release("lobby")
    assert again.table.channel("minted", "0xabc") == "lobby"
    again.table.register("lobby")
    assert again.facts == [("lobby", {"capitals": "LOBBY", "minted": "0xabc"}, True)]


def test_where_channels_are_only_configured() -> None:
    desk = Desk(create=False)
    for use in (desk.table.hold, desk.table.register):
        with pytest.raises(UnknownChannel):
            use("lobby")
    with pytest.raises(UnknownChannel):
        desk.table.assign("minted", "lobby", "0xabc")
    desk.table.configure("lobby")
    desk.table.configure("lobby")
    desk.table.hold("lobby")
    desk.table.register("lobby")
    assert desk.facts == [("lobby", {"capitals": "LOBBY"}, True)]
    desk.table.close("lobby")
    for use in (desk.table.hold, desk.table.register):
        with pytest.raises(UnknownChannel):
            use("lobby")
    desk.table.configure("lobby")
    assert desk.table.exists("lobby")


def test_an_adapter_that_was_switched_off_catches_up() -> None:
    old = Desk(protocols=("minted",))
    old.table.assign("minted", "LOBBY", "0xabc")
    old.table.assign("minted", "lobby", "0xdef")
    desk = old.restarted()
    assert desk.table.address("capitals", "lobby") == "LOBBY"
    assert desk.table.addresses("lobby") == {"capitals": "LOBBY", "minted": "0xdef"}
    assert desk.facts == []
    desk.table.register("lobby")
    desk.table.register("lobby")
    desk.table.register("LOBBY")
    assert desk.facts == [
        ("lobby", {"capitals": "LOBBY", "minted": "0xdef"}, True),
        ("LOBBY", {"capitals": "LOBBY!", "minted": "0xabc"}, True),
    ]
    assert desk.restarted().table.channel("capitals", "LOBBY!") == "LOBBY"


def test_an_adapter_that_is_switched_off_now_is_passed_over() -> None:
    desk = Desk()
    desk.table.assign("minted", "lobby", "0xabc")
    assert desk.restarted(protocols=("capitals",)).table.addresses("lobby") == {"capitals": "LOBBY"}


def test_a_pin_says_what_a_channel_is_called() -> None:
    desk = Desk(create=False)
    desk.table.pin("weather", {"capitals": "WX", "minted": "m1"})
    assert desk.facts == [("weather", {"capitals": "WX", "minted": "m1"}, True)]
    assert (desk.table.channel("capitals", "WX"), desk.table.channel("minted", "m1")) == ("weather", "weather")
    with pytest.raises(UnknownChannel):
        desk.table.channel("capitals", "WEATHER")  # it would come back as another
    desk.table.pin("weather", {"capitals": "WX"})
    assert len(desk.facts) == 1, "nothing new"
    again = desk.restarted()
    again.table.configure("wx")
    assert again.table.address("capitals", "wx") == "WX!", "what is pinned is taken"


def test_a_pin_moves_nothing() -> None:
    desk = Desk()
    desk.table.register("weather")
    desk.table.register("lobby")
    for channel, addresses in [("weather", {"capitals": "WX"}), ("new", {"capitals": "LOBBY"})]:
        with pytest.raises(ValueError, match="already"):
            desk.table.pin(channel, {"minted": "m1"} | addresses)
    assert (desk.table.address("capitals", "weather"), desk.table.exists("new")) == ("WEATHER", False)
    assert desk.table.address("minted", "weather") is None, "all of it or nothing"
    desk.table.pin("weather", {"minted": "m1"})
    assert desk.restarted().table.channel("minted", "m1") == "weather", "what had no address yet gets one"


def test_a_closed_channel_takes_no_place_once_nothing_of_it_is_kept() -> None:
    desk = Desk(limit=2)
    for name in ("one", "two"):
        desk.table.register(name)
    desk.kept.add("one")
    desk.table.close("one")
    with pytest.raises(TooManyChannels):
        desk.table.register("three")
    desk.table.close("two")
    desk.table.register("three")
    with pytest.raises(TooManyChannels):
        desk.table.hold("two")
    desk.kept.clear()  # retention takes what was said
    desk.table.hold("two")
    assert desk.table.listed("", 9) == ["three", "two"]
    assert desk.table.channel("capitals", "ONE") == "one", "its address stays its own"


def test_who_listens_to_a_closed_channel_takes_its_place() -> None:
    desk = Desk(limit=1)
    desk.table.register("one")
    desk.table.hold("one")
    desk.table.close("one")
    for _ in range(2):
        with pytest.raises(TooManyChannels):
            desk.table.register("two")
    desk.table.release("one")
    desk.table.register("two")


def test_names_are_not_remembered_without_end() -> None:
    desk = Desk(limit=1)
    for number in range(NAMES_FACTOR):
        desk.table.register(str(number))
        desk.table.close(str(number))
    with pytest.raises(TooManyChannels, match="names"):
        desk.table.register("one more")
    desk.table.register("0")


def test_users_make_only_so_many() -> None:
    desk = Desk(limit=2)
    desk.table.register("one")
    desk.table.hold("two")
    for make in (desk.table.hold, desk.table.register):
        with pytest.raises(TooManyChannels, match="2 channels"):
            make("three")
    desk.table.register("two")
    desk.table.configure("three")
    desk.table.pin("four", {"capitals": "4"})
    assert desk.table.registered() == ["four", "one", "three", "two"], "the operator may make more"
    assert desk.restarted(limit=2).table.registered() == ["four", "one", "three", "two"]
    desk = Desk(limit=1)
    desk.table.hold("one")
    desk.table.release("one")
    desk.table.hold("two")
