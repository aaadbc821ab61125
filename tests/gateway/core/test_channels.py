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


class RecordedChannels:
    """A table and the facts it has written."""

    def __init__(
        self, *, create: bool = True, limit: int = LIMIT, protocols: tuple[str, ...] = ("capitals", "minted")
    ) -> None:
        self.kept: set[str] = set()  # the channels of which a message is kept
        self.facts: list[tuple[str, dict[str, str], bool]] = []
        rules: list[Any] = [rule for rule in (Capitals(), Minted()) if rule.name in protocols]
        self.table = Channels(rules, self._record, create=create, limit=limit, kept=self.kept.intersection)

    def restarted(self, **options: object) -> RecordedChannels:
        """What the log's facts make of it."""
        again = RecordedChannels(**options)  # type: ignore[arg-type]
        for name, addresses, is_open in {fact[0]: fact for fact in self.facts}.values():
            again.table.restore(name, addresses, open=is_open)
        return again

    def _record(self, channel: str, addresses: Mapping[str, str], is_open: bool) -> None:
        self.facts.append((channel, dict(addresses), is_open))


@pytest.mark.parametrize("name", ["a", "x" * MAX_NAME, "gateway/x", "a b", "naïve ☃ 😀", "\u200b", "@/"])
def test_valid_names(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\nb", "\0", "\x7f", "\x85", "a/@b", "\ud800"])
def test_invalid_names(name: str) -> None:
    assert not valid_name(name)
    with pytest.raises(UnknownChannel):
        RecordedChannels().table.hold(name)


def test_looking_up_a_channel_creates_nothing() -> None:
    harness = RecordedChannels()
    assert harness.table.channel("capitals", "LOBBY") == "lobby"
    assert harness.table.address("capitals", "lobby") == "LOBBY"
    assert harness.table.address("minted", "lobby") is None
    assert harness.table.addresses("lobby") == {"capitals": "LOBBY"}
    assert not harness.table.exists("lobby")
    assert (harness.facts, harness.table.registered()) == ([], [])
    with pytest.raises(UnknownChannel):
        harness.table.channel("minted", "anything")
    with pytest.raises(UnknownChannel):
        harness.table.channel("capitals", "")


def test_holding_is_in_memory_and_registering_is_a_fact() -> None:
    harness = RecordedChannels()
    harness.table.hold("lobby")
    assert not harness.table.exists("lobby")
    harness.table.release("lobby")
    assert harness.facts == []
    harness.table.register("lobby")
    harness.table.register("lobby")
    harness.table.release("lobby")
    assert harness.table.registered() == ["lobby"]
    assert harness.facts == [("lobby", {"capitals": "LOBBY"}, True)]
    assert harness.restarted().table.registered() == ["lobby"]


def test_two_channels_never_share_an_address() -> None:
    harness = RecordedChannels()
    harness.table.register("lobby")
    harness.table.register("LOBBY")
    assert harness.table.address("capitals", "LOBBY") == "LOBBY!"
    assert harness.table.channel("capitals", "LOBBY!") == "LOBBY"
    assert harness.table.channel("capitals", "LOBBY") == "lobby"
    again = harness.restarted().table
    assert again.channel("capitals", "LOBBY!") == "LOBBY"
    again.hold("Lobby")
    assert again.address("capitals", "Lobby") == "LOBBY!!"
    again.release("Lobby")
    assert again.channel("capitals", "LOBBY!!") == "lobby!!"


def test_assigned_addresses() -> None:
    harness = RecordedChannels()
    harness.table.assign("minted", "lobby", "0xabc")
    harness.table.assign("minted", "lobby", "0xabc")
    assert harness.facts == [("lobby", {"capitals": "LOBBY", "minted": "0xabc"}, True)]
    assert harness.table.channel("minted", "0xabc") == "lobby"
    with pytest.raises(ValueError, match="already"):
        harness.table.assign("minted", "other", "0xabc")
    again = harness.restarted().table
    assert again.channel("minted", "0xabc") == "lobby"
    assert again.addresses("lobby") == {"capitals": "LOBBY", "minted": "0xabc"}


def test_a_closed_channel_is_not_listed_until_it_is_used() -> None:
    harness = RecordedChannels()
    harness.table.close("lobby")
    harness.table.assign("minted", "lobby", "0xabc")
    harness.table.close("lobby")
    harness.table.close("lobby")
    assert (harness.table.exists("lobby"), len(harness.facts)) == (False, 2)
    again = harness.restarted()
    assert not again.table.exists("lobby")
    assert again.table.channel("minted", "0xabc") == "lobby"
    again.table.hold("lobby")
    again.table.release("lobby")
    assert again.table.channel("minted", "0xabc") == "lobby"
    again.table.register("lobby")
    assert again.facts == [("lobby", {"capitals": "LOBBY", "minted": "0xabc"}, True)]


def test_users_create_no_channel_if_channels_are_only_configured() -> None:
    harness = RecordedChannels(create=False)
    for use in (harness.table.hold, harness.table.register):
        with pytest.raises(UnknownChannel):
            use("lobby")
    with pytest.raises(UnknownChannel):
        harness.table.assign("minted", "lobby", "0xabc")
    harness.table.configure("lobby")
    harness.table.configure("lobby")
    harness.table.hold("lobby")
    harness.table.register("lobby")
    assert harness.facts == [("lobby", {"capitals": "LOBBY"}, True)]
    harness.table.close("lobby")
    for use in (harness.table.hold, harness.table.register):
        with pytest.raises(UnknownChannel):
            use("lobby")
    harness.table.configure("lobby")
    assert harness.table.exists("lobby")


def test_an_adapter_that_was_disabled_catches_up() -> None:
    old = RecordedChannels(protocols=("minted",))
    old.table.assign("minted", "LOBBY", "0xabc")
    old.table.assign("minted", "lobby", "0xdef")
    harness = old.restarted()
    assert harness.table.address("capitals", "lobby") == "LOBBY"
    assert harness.table.addresses("lobby") == {"capitals": "LOBBY", "minted": "0xdef"}
    assert harness.facts == []
    harness.table.register("lobby")
    harness.table.register("lobby")
    harness.table.register("LOBBY")
    assert harness.facts == [
        ("lobby", {"capitals": "LOBBY", "minted": "0xdef"}, True),
        ("LOBBY", {"capitals": "LOBBY!", "minted": "0xabc"}, True),
    ]
    assert harness.restarted().table.channel("capitals", "LOBBY!") == "LOBBY"


def test_a_disabled_adapter_is_skipped() -> None:
    harness = RecordedChannels()
    harness.table.assign("minted", "lobby", "0xabc")
    assert harness.restarted(protocols=("capitals",)).table.addresses("lobby") == {"capitals": "LOBBY"}


def test_a_pin_sets_the_addresses_of_a_channel() -> None:
    harness = RecordedChannels(create=False)
    harness.table.pin("weather", {"capitals": "WX", "minted": "m1"})
    assert harness.facts == [("weather", {"capitals": "WX", "minted": "m1"}, True)]
    assert (harness.table.channel("capitals", "WX"), harness.table.channel("minted", "m1")) == ("weather", "weather")
    with pytest.raises(UnknownChannel):
        harness.table.channel("capitals", "WEATHER")  # it would come back as another
    harness.table.pin("weather", {"capitals": "WX"})
    assert len(harness.facts) == 1, "nothing new"
    again = harness.restarted()
    again.table.configure("wx")
    assert again.table.address("capitals", "wx") == "WX!", "what is pinned is taken"


def test_a_pin_changes_no_existing_address() -> None:
    harness = RecordedChannels()
    harness.table.register("weather")
    harness.table.register("lobby")
    for channel, addresses in [("weather", {"capitals": "WX"}), ("new", {"capitals": "LOBBY"})]:
        with pytest.raises(ValueError, match="already"):
            harness.table.pin(channel, {"minted": "m1"} | addresses)
    assert (harness.table.address("capitals", "weather"), harness.table.exists("new")) == ("WEATHER", False)
    assert harness.table.address("minted", "weather") is None, "pinning is atomic"
    harness.table.pin("weather", {"minted": "m1"})
    assert harness.restarted().table.channel("minted", "m1") == "weather", "what had no address yet gets one"


def test_a_closed_channel_is_reclaimed_once_no_message_of_it_is_kept() -> None:
    harness = RecordedChannels(limit=2)
    for name in ("one", "two"):
        harness.table.register(name)
    harness.kept.add("one")
    harness.table.close("one")
    with pytest.raises(TooManyChannels):
        harness.table.register("three")
    harness.table.close("two")
    harness.table.register("three")
    with pytest.raises(TooManyChannels):
        harness.table.hold("two")
    harness.kept.clear()  # retention takes what was said
    harness.table.hold("two")
    assert harness.table.listed("", 9) == ["three", "two"]
    assert harness.table.channel("capitals", "ONE") == "one", "its address stays its own"


def test_a_closed_channel_with_listeners_counts() -> None:
    harness = RecordedChannels(limit=1)
    harness.table.register("one")
    harness.table.hold("one")
    harness.table.close("one")
    for _ in range(2):
        with pytest.raises(TooManyChannels):
            harness.table.register("two")
    harness.table.release("one")
    harness.table.register("two")


def test_the_number_of_remembered_names_is_bounded() -> None:
    harness = RecordedChannels(limit=1)
    for number in range(NAMES_FACTOR):
        harness.table.register(str(number))
        harness.table.close(str(number))
    with pytest.raises(TooManyChannels, match="names"):
        harness.table.register("one more")
    harness.table.register("0")


def test_users_create_channels_up_to_the_limit() -> None:
    harness = RecordedChannels(limit=2)
    harness.table.register("one")
    harness.table.hold("two")
    for make in (harness.table.hold, harness.table.register):
        with pytest.raises(TooManyChannels, match="2 channels"):
            make("three")
    harness.table.register("two")
    harness.table.configure("three")
    harness.table.pin("four", {"capitals": "4"})
    assert harness.table.registered() == ["four", "one", "three", "two"], "the operator may make more"
    assert harness.restarted(limit=2).table.registered() == ["four", "one", "three", "two"]
    harness = RecordedChannels(limit=1)
    harness.table.hold("one")
    harness.table.release("one")
    harness.table.hold("two")
