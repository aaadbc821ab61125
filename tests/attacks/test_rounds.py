"""Several rounds of an attack are judged and printed as one."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.__main__ import judge, summed
from tests.attacks.measure import Cost, HonestImpact
from tests.attacks.stage import AttackOutcome
from tests.attacks.table import BY_NAME
from tests.attacks.target import Report

ROOT = Path(__file__).parents[2]


def outcome(median: float, longest: float = 5.0, lost: int = 0, memory: float = 1.0) -> AttackOutcome:
    return AttackOutcome(
        BY_NAME["nothing"],
        Report(),
        Cost(memory, 0.0, 0.1, 0.1, 40, 13),
        HonestImpact({"rest": 1.0}, {"rest": median}, {}, {}, 3.0, longest, longest / 2, "rest", lost, 100),
    )


def test_a_median_is_judged_over_all_rounds_and_everything_else_in_each() -> None:
    assert judge([outcome(1.5), outcome(1.0), outcome(1.05)]) == []
    assert judge([outcome(1.5), outcome(1.2), outcome(1.0)]) == ["the median moved by +20%"]
    assert judge([outcome(1.0), outcome(1.0), outcome(1.0, lost=2)]) == ["FAULT 2 of 100 honest messages were lost"]
    assert judge([outcome(1.0), outcome(1.0), outcome(1.0, memory=999.0)]) == ["FAULT 999.0 MiB of memory, not 64.0"]
    assert judge([outcome(1.0), outcome(1.0), outcome(1.0, longest=300.0)]) == [
        "the longest wait is 300 ms, of 150 ms of work"
    ]
    both = summed([outcome(1.0, lost=1), outcome(1.0, longest=300.0), outcome(1.0)])
    assert (both.wait.lost, both.wait.sent, both.wait.longest) == (1, 300, 300.0)


def test_the_page_for_operators_has_a_row_for_each_attack() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page[page.index("| attack | bound | answers |") :].partition("\n\n")[0]
    rows = [row.removeprefix("| ").partition(":")[0] for row in table.splitlines()[2:]]
    assert sorted(rows) == sorted(BY_NAME)
