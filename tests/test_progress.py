"""One plain line at intervals when piped, a bar on a terminal, and nothing of either on standard output."""

from __future__ import annotations

import sys

import pytest

from unmask import progress
from unmask.progress import Progress, megabytes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_so_often(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as told:
        told.stage("read", "MB", 1_000)
        for _ in range(12):
            clock[0] += 1
            told.add(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["read: 60 MB, 10 a second, about 94 s left", "read: 120 MB, 10 a second, about 88 s left"]


def test_stages_count_from_nothing_and_totals_may_be_wrong(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress()
    assert list(told.over(["ab", "c"], len)) == ["ab", "c"]
    for done in (5, 30):
        clock[0] += 6
        told.reach("joined", "pieces", done, 20)
    assert capsys.readouterr().err.splitlines() == ["joined: 30 pieces, 5 a second"], "more than the total: nobody knows what is left"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as told:
        told.reach("joined", "pieces", 10, 20)
        told.reach("written", "tokens", 5)
        assert [task.description for task in told.bar.tasks] == ["written"]
        assert told.bar.tasks[0].completed == 5
    assert capsys.readouterr().out == ""


def test_the_size_of_a_text_on_disk() -> None:
    assert megabytes("a" * 2_000_000) == 2.0
    assert megabytes("가" * 1_000_000) == 3.0
    assert megabytes("\ud800") > 0
