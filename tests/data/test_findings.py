"""Every number that is wrong has its finding, with what it costs and what to do; numbers that are right have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unmask.data.doctor import Finding, Labels, Leak, Profile, Report
from unmask.data.findings import FAULTS, LITTLE, findings

CLEAN = Profile(
    documents=10_000,
    characters=10_000_000,
    words=2 * LITTLE,
    sentences=100_000,
    lengths={"shortest": 10, "median": 200, "longest": 2_000},
    histogram={128: 10_000},
    scripts={"Latin": 1.0},
    languages={"English": 1.0},
    faults={},
    pairs=0.9,
    copies=0.0,
    near=0.0,
    lines=0.0,
    sampled=False,
)
LABELS = Labels(rows=1_000, counts={"good": 600, "bad": 400}, empty=0, missing=0, conflicting=0, example="")


def only(found: tuple[Finding, ...]) -> Finding:
    (one,) = found
    assert one.cost.strip()
    assert one.remedy.strip()
    return one


def test_clean_data_has_no_findings() -> None:
    assert findings(CLEAN) == ()
    assert findings(CLEAN, Leak(100, 0, 0, 0), replace(LABELS, other={"good": 1})) == ()
    assert not Report((), CLEAN, ()).bad


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(("count", "severity"), [(1, "note"), (10, "note"), (11, "bad"), (10_000, "bad")])
def test_faults(kind: str, count: int, severity: str) -> None:
    one = only(findings(replace(CLEAN, faults={kind: count})))
    assert one.severity == ("note" if kind == "control" else severity)
    assert one.what.endswith(f" in {count:,} of 10,000 documents")
    assert (one.cost, one.remedy) == FAULTS[kind][1:]


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        ({"copies": 0.002}, "note", "0.2% of the documents are exact copies of others"),
        ({"copies": 0.06}, "bad", "6.0% of the documents are exact copies of others"),
        ({"near": 0.02}, "note", "2.0% of the documents are near copies of others"),
        ({"near": 0.2, "sampled": True}, "bad", "20.0% of the documents are near copies of others (by a sample)"),
        ({"lines": 0.06}, "note", "6.0% of the long lines stand elsewhere too"),
        ({"pairs": 0.3}, "note", "only 30% of the documents have two sentences or more"),
        ({"pairs": 0.04}, "bad", "only 4% of the documents have two sentences or more"),
        ({"words": 999_999}, "note", "999,999 words in all"),
        ({"lengths": {"median": 9, "longest": 1_000_001}}, "note", "the longest document has 1,000,001 words, the median 9"),
    ],
)
def test_what_a_profile_may_have(change: dict[str, object], severity: str, says: str) -> None:
    one = only(findings(replace(CLEAN, **change)))  # type: ignore[arg-type]
    assert (one.severity, one.what) == (severity, says)


@pytest.mark.parametrize("change", [{"copies": 0.001}, {"near": 0.01}, {"lines": 0.05}, {"pairs": 0.5}, {"words": LITTLE}, {"faults": {"NUL": 0}}])
def test_what_is_little_enough_is_no_finding(change: dict[str, object]) -> None:
    assert findings(replace(CLEAN, **change)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("leak", "severity", "says"),
    [
        (Leak(1_000, 0.005, 0, 0), "note", "0.50% of the other data set's documents stand here word for word"),
        (Leak(1_000, 0.01, 0, 0), "bad", "1.00% of the other data set's documents stand here word for word"),
        (Leak(1_000, 0, 0.02, 0), "note", "2.00% of the other data set's documents share a run of 13 words"),
        (Leak(1_000, 0, 0.001, 0.001), "note", "0.10% half of theirs or more"),
        (Leak(1_000, 0, 0.5, 0.4), "bad", "40.00% half of theirs or more"),
    ],
)
def test_leaks(leak: Leak, severity: str, says: str) -> None:
    one = only(findings(CLEAN, leak))
    assert one.severity == severity
    assert says in one.what


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        ({"counts": {"good": 1_000}}, "bad", "every row has the label 'good'"),
        ({"counts": {}}, "bad", "every row has no label at all"),
        ({"counts": {"good": 961, "bad": 39, "odd": 900}}, "note", "the rarest label stands on 39 rows, the commonest on 961"),
        ({"empty": 1}, "note", "1 of 1,000 rows has no text"),
        ({"empty": 11}, "bad", "11 of 1,000 rows have no text"),
        ({"missing": 10}, "note", "10 of 1,000 rows have no label"),
        ({"missing": 11}, "bad", "11 of 1,000 rows have no label"),
        ({"conflicting": 2, "example": "a 'b'"}, "note", "2 of 1,000 rows have a text that stands elsewhere with another label, such as \"a 'b'\""),
        ({"conflicting": 400}, "bad", "400 of 1,000 rows have a text"),
        ({"other": {"good": 9, "worse": 1}}, "bad", "the other data set has labels that this one lacks: worse"),
    ],
)
def test_labels(change: dict[str, object], severity: str, says: str) -> None:
    one = only(findings(CLEAN, labels=replace(LABELS, **change)))  # type: ignore[arg-type]
    assert one.severity == severity
    assert one.what.startswith(says)


def test_a_table_with_labels_needs_no_pairs_and_no_million_words() -> None:
    poor = replace(CLEAN, pairs=0.0, words=100)
    assert len(findings(poor)) == 2
    assert findings(poor, labels=LABELS) == ()


def test_the_bad_come_first_and_all_say_what_to_do() -> None:
    faults = dict.fromkeys(FAULTS, 5_000)
    worst = replace(CLEAN, faults=faults, copies=0.5, near=0.005, lines=0.9)
    labels = Labels(1_000, {"a": 990, "b": 10}, empty=1, missing=500, conflicting=1, example="x", other={"c": 1})
    found = findings(worst, Leak(10, 1, 1, 1), labels)
    assert [one.severity for one in found] == ["bad"] * 10 + ["note"] * 5
    assert len({one.what for one in found}) == 15
    assert all(one.what.strip() and one.cost.strip() and one.remedy.strip() for one in found)
    assert Report((), worst, found).bad
    assert not Report((), worst, found[10:]).bad
