"""Which tests the processes of the suite share out together."""

from __future__ import annotations

import pytest
from xdist.remote import Producer

from tests.sharing import PipelineTogether


def test_one_process_has_all_tests_of_the_pipeline(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in (("dist", "loadfile"), ("tx", ["2*popen"])):
        monkeypatch.setattr(pytestconfig.option, option, value, raising=False)
    scheduler = pytestconfig.hook.pytest_xdist_make_scheduler(config=pytestconfig, log=Producer("test"))
    assert isinstance(scheduler, PipelineTogether)
    tests = (
        "tests/pipeline/test_sql.py::test_a[x::y]",
        "tests/pipeline/test_jobs.py::test_b",
        "tests/test_a.py::test_c",
    )
    one, other, elsewhere = map(scheduler._split_scope, tests)
    assert one == other
    assert elsewhere == "tests/test_a.py"
    monkeypatch.setattr(pytestconfig.option, "dist", "worksteal")
    scheduler = pytestconfig.hook.pytest_xdist_make_scheduler(config=pytestconfig, log=Producer("test"))
    assert not isinstance(scheduler, PipelineTogether)
