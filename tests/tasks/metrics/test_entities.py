"""Entities: small cases by hand; seqeval's word on any tags at all stands in parity/test_metrics.py."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.tasks.metrics.entities import Line, Table, entity_f1, entity_table, overlap, overlap_f1, overlap_precision, overlap_recall

GOLD = [{(0, 1, "PER"), (2, 4, "LOC")}, {(0, 2, "PER")}, set[tuple[int, int, str]]()]
SAID = [{(0, 1, "PER"), (2, 3, "LOC")}, {(0, 2, "LOC"), (5, 6, "ORG")}, set[tuple[int, int, str]]()]


def test_start_end_and_label_must_all_be_right() -> None:
    assert [overlap(*pair) for pair in zip(GOLD, SAID, strict=True)] == [Line(1, 2, 2), Line(0, 1, 2), Line(0, 0, 0)]
    assert entity_f1(GOLD, SAID) == pytest.approx(2 / 7)


def test_a_table() -> None:
    table = entity_table(GOLD, SAID)
    assert table == {"LOC": Line(0, 1, 2), "ORG": Line(0, 0, 1), "PER": Line(1, 2, 1)}
    assert (table["PER"].precision, table["PER"].recall, table["PER"].f1) == (1, 0.5, pytest.approx(2 / 3))
    assert (table["ORG"].precision, table["ORG"].recall, table["ORG"].f1) == (0, 0, 0)


def test_texts_are_added_one_by_one() -> None:
    table = Table()
    for gold, said in zip(GOLD, SAID, strict=True):
        table.add(gold, said)
    assert table.lines() == entity_table(GOLD, SAID)
    assert table.lines() is not Table().lines()
    assert Table().lines() == {}


def test_saying_it_twice_does_not_help() -> None:
    assert overlap([(0, 1, "A")], [(0, 1, "A"), (0, 1, "A")]) == Line(1, 1, 1)
    assert entity_table([[(0, 1, "A")]], [[(0, 1, "A"), (0, 1, "A")]]) == {"A": Line(1, 1, 1)}


def test_no_entity_anywhere_is_0() -> None:
    """As seqeval has it."""
    assert entity_f1([[], []], [[], []]) == 0


def test_weights_count_texts() -> None:
    weights = np.array([[1.0, 1, 1], [2, 0, 1], [0, 0, 3]])
    again = [entity_f1([GOLD[0]] * 2, [SAID[0]] * 2)]
    assert entity_f1(GOLD, SAID, weights).tolist() == [pytest.approx(2 / 7), *again, 0]


def test_precision_and_recall() -> None:
    right, gold, said = np.array([1, 0]), np.array([2, 2]), np.array([1, 0])
    assert (overlap_precision(right, gold, said), overlap_recall(right, gold, said)) == (1, 0.25)
    assert overlap_f1(right, gold, said) == pytest.approx(0.4)
    assert overlap_recall(right, gold, said, np.array([1.0, 0])) == 0.5
