"""An evaluation gathered example by example says what the same answers all at once would."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.tasks.metrics import answers, calibration, entities, scores
from unmask.tasks.metrics.entities import Line
from unmask.tasks.metrics.tally import Tally, Worst, compare, score

LABELS = ["neg", "neutral", "긍정"]


def filled(kind: str, pairs: list[tuple[Any, Any]], labels: list[str] | None = None, **settings: Any) -> Tally:
    tally = Tally(kind, labels or [], **settings)
    for gold, said in pairs:
        tally.add(gold, said)
    return tally


def classes(count: int, labels: int, seed: int = 0, right: float = 0.7) -> list[tuple[int, int]]:
    draw = np.random.default_rng(seed)
    gold = np.random.default_rng(0).integers(0, labels, count)
    return list(zip(gold.tolist(), np.where(draw.random(count) < right, gold, draw.integers(0, labels, count)).tolist(), strict=True))


# ---- every kind


@pytest.mark.parametrize("labels", [2, 3])
def test_one(labels: int) -> None:
    pairs = classes(200, labels)
    gold, said = map(list, zip(*pairs, strict=True))
    names = LABELS[:labels]
    expected = {
        "accuracy": scores.accuracy(gold, said),
        "f1": scores.positive_f1(gold, said),
        "macro_f1": scores.f1(gold, said),
        "weighted_f1": scores.f1(gold, said, average="weighted"),
        "matthews": scores.matthews(gold, said),
    }
    if labels == 3:
        del expected["f1"]
    assert score("one", gold, said, names) == pytest.approx(expected)
    assert score("one", [names[i] for i in gold], [names[i] for i in said], names) == pytest.approx(expected)
    table = filled("one", pairs, names).table()
    assert list(table) == names
    assert np.mean([line.f1 for line in table.values()]) == pytest.approx(expected["macro_f1"])


def test_many() -> None:
    draw = random.Random(0)
    names = [f"label {i}" for i in range(11)]  # more than a byte holds, fewer than two do
    pairs = [(draw.sample(names, draw.randint(0, 4)), draw.sample(names, draw.randint(0, 4))) for _ in range(100)]
    flags = [np.array([[name in some for name in names] for some in side]) for side in zip(*pairs, strict=True)]
    tally = filled("many", pairs, names)
    assert tally.values() == pytest.approx(
        {
            "f1": scores.f1(*flags, average="micro"),
            "macro_f1": scores.f1(*flags),
            "weighted_f1": scores.f1(*flags, average="weighted"),
            "accuracy": scores.accuracy(*flags),
        }
    )
    both = [set(gold) & set(said) for gold, said in pairs]
    assert tally.table()["label 3"] == Line(*(sum("label 3" in some for some in side) for side in (both, *zip(*pairs, strict=True))))
    assert len(tally.kept) == 100 * (2 + 2 + 4 + 4)


@pytest.mark.parametrize("kind", ["number", "embed"])
def test_numbers(kind: str) -> None:
    draw = np.random.default_rng(0)
    gold = draw.normal(size=50)
    said = gold + draw.normal(size=50)
    expected = {name: getattr(scores, name)(gold, said) for name in ("spearman", "pearson", "squared_error", "absolute_error", "r2")}
    assert score(kind, gold, said) == pytest.approx(expected, abs=1e-12)


def test_tagging() -> None:
    draw = random.Random(0)

    def some() -> set[entities.Entity]:
        return {(start, start + draw.randint(1, 2), draw.choice("AB")) for start in draw.sample(range(8), draw.randint(0, 4))}

    pairs = [(some(), some()) for _ in range(60)]
    gold, said = map(list, zip(*pairs, strict=True))
    tally = filled("tagging", pairs)
    table = entities.entity_table(gold, said)
    assert tally.table() == table
    right, true, told = (sum(getattr(line, name) for line in table.values()) for name in ("right", "gold", "said"))
    assert tally.values() == pytest.approx({"f1": entities.entity_f1(gold, said), "precision": right / told, "recall": right / true})
    assert tally.right().tolist() == [one == other for one, other in pairs]


@pytest.mark.parametrize("none", [False, True])
def test_spans(none: bool) -> None:
    pairs = [(["the cat", "cat"], "a cat"), (["."], ""), (["one two"], "two"), (["x"], "y")] + ([([], ""), ([], "z")] if none else [])
    f1 = [answers.overlap_of_words(gold, said, none) for gold, said in pairs]
    exact = [answers.exact(gold, said, none) for gold, said in pairs]
    expected = {"f1": np.mean(f1), "exact": np.mean(exact)}
    if none:
        expected |= {"f1_answerable": np.mean(f1[:4]), "exact_answerable": np.mean(exact[:4]), "unanswerable": np.mean(exact[4:])}
        assert expected["unanswerable"] == 0.5
    tally = filled("spans", pairs, none=none)
    assert tally.values() == pytest.approx(expected)
    assert set(tally.intervals()) == set(expected)
    assert tally.right().tolist() == [bool(one) for one in exact]


def test_choice_has_any_number_of_endings() -> None:
    tally = filled("choice", [(0, 0), (5, 2), (7, 7)])
    assert tally.values() == {"accuracy": pytest.approx(2 / 3)}
    assert tally.right().tolist() == [True, False, True]


def test_an_unknown_label_is_told() -> None:
    tally = Tally("one", LABELS)
    with pytest.raises(UserError, match=r"^the model has no label 'negg', did you mean neg\?$"):
        tally.add("negg", "neg")
    for wrong in (3, -1):
        with pytest.raises(UserError, match=rf"^the model has no label {wrong}; known: "):
            tally.add(wrong, "neg")
    with pytest.raises(UserError, match="the model has no label 'b'"):
        Tally("many", ["a"]).add(["a", "b"], [])
    assert len(tally) == 0


@pytest.mark.parametrize("kind", ["one", "number", "spans"])
def test_nothing_to_measure(kind: str) -> None:
    tally = Tally(kind, LABELS)
    for asked in (tally.values, tally.intervals, lambda: tally.rows):
        with pytest.raises(UserError, match=r"^there is no example to measure; give one at least$"):
            asked()


def test_what_a_kind_does_not_have() -> None:
    tally = filled("number", [(1.0, 2.0), (2.0, 1.0)])
    with pytest.raises(UserError, match=r"^there is no confusion matrix of answers of the kind number, only of one$"):
        tally.confusion()
    with pytest.raises(UserError, match=r"^there is no table of labels of answers of the kind number, only of one and many and tagging$"):
        tally.table()
    with pytest.raises(UserError, match=r"^an answer of the kind number is near or far, not right or wrong$"):
        tally.right()


# ---- intervals, the loss, calibration


@pytest.mark.parametrize("kind", ["one", "many", "number", "tagging", "spans", "choice"])
def test_intervals_stand_around_the_values(kind: str) -> None:
    draw = random.Random(0)
    made: dict[str, Any] = {
        "one": lambda: (draw.randrange(3), draw.randrange(3)),
        "many": lambda: (draw.sample(LABELS, draw.randint(0, 3)), draw.sample(LABELS, draw.randint(0, 3))),
        "number": lambda: (value := draw.gauss(0, 1), value + draw.gauss(0, 1)),
        "tagging": lambda: ({(i, i + 1, "A") for i in range(3) if draw.random() < 0.7}, {(i, i + 1, "A") for i in range(3) if draw.random() < 0.7}),
        "spans": lambda: ([draw.choice(["a b", "b c", "c d"])], draw.choice(["b", "b c", "d e"])),
        "choice": lambda: (draw.randrange(4), draw.randrange(4)),
    }
    tally = filled(kind, [made[kind]() for _ in range(150)], LABELS)
    values, found = tally.values(), tally.intervals()
    assert list(found) == list(values)
    for name, one in found.items():
        assert one.value == pytest.approx(values[name]), name
        assert one.low < one.value < one.high, name
        assert one.high - one.low < 1.2, name


def test_all_right_has_an_interval_too() -> None:
    found = filled("one", [(0, 0), (1, 1)] * 10, LABELS).intervals()
    assert (found["accuracy"].value, found["accuracy"].high) == (1, 1)
    assert 0.8 < found["accuracy"].low < 0.9
    assert filled("spans", [(["a"], "b")] * 20).intervals()["exact"].high == pytest.approx(1 - found["accuracy"].low)


def test_the_loss_is_told_where_it_is_known() -> None:
    tally = Tally("one", LABELS)
    for loss in (0.5, 1.0, 3.0):
        tally.add(0, 0, loss=loss)
    assert tally.values()["loss"] == pytest.approx(1.5)
    found = tally.intervals()["loss"]
    assert 0.5 <= found.low < found.value < found.high <= 3
    assert found.value == pytest.approx(1.5)
    tally.add(0, 0)
    assert "loss" not in tally.values()
    assert "loss" not in tally.intervals()


def test_calibration() -> None:
    draw = np.random.default_rng(0)
    tally, chances, right = Tally("one", LABELS), draw.random(300), draw.random(300) < 0.5
    for chance, good in zip(chances, right, strict=True):
        tally.add(0, 0 if good else 1, chance=chance)
    for adaptive in (False, True):
        assert tally.reliability(10, adaptive) == calibration.reliability(chances.astype(np.float32), right, 10, adaptive)
    tally.add(0, 0)
    with pytest.raises(UserError, match="add them with chance="):
        tally.reliability()


# ---- confusions and the worst


def test_a_confusion_matrix() -> None:
    pairs = classes(300, 3)
    labels, matrix = filled("one", pairs, LABELS).confusion()
    assert labels == tuple(LABELS)
    assert matrix.tolist() == [[pairs.count((i, j)) for j in range(3)] for i in range(3)]


def test_of_a_thousand_labels_those_most_often_confused() -> None:
    names = [f"label {i}" for i in range(1_000)]
    pairs = [(i, i) for i in range(1_000)] + [(700, 3)] * 5 + [(3, 700)] * 2 + [(41, 3)] * 3 + [(i, 50) for i in range(100, 110)]
    labels, matrix = filled("one", pairs, names).confusion(most=4)
    assert labels == ("label 3", "label 50", "label 700", "997 others")
    assert matrix.tolist() == [[1, 0, 2, 0], [0, 1, 0, 0], [5, 0, 1, 0], [3, 10, 0, 997]]
    assert matrix.sum() == len(pairs)


@pytest.mark.parametrize(
    ("kind", "pairs", "expected"),
    [
        ("one", [("neg", "neg"), ("neg", "neutral")], [1, 0]),
        ("many", [(["neg"], ["neg"]), ([], ["neg"]), (["neg"], ["neutral", "긍정"])], [2, 1, 0]),
        ("number", [(1.0, 1.5), (1.0, -1.0), (0.0, float("nan"))], [2, 1, 0]),
        ("tagging", [([(0, 1, "A")], [(0, 1, "A")]), ([(0, 1, "A")], [(0, 1, "B"), (1, 2, "B")]), ([], [(0, 1, "A")])], [1, 2, 0]),
        ("spans", [(["x b c"], "b c"), (["b"], "c"), (["b"], "b")], [1, 0, 2]),
    ],
)
def test_without_a_loss_the_worst_are_those_most_wrong(kind: str, pairs: list[tuple[Any, Any]], expected: list[int]) -> None:
    tally = Tally(kind, LABELS)
    for i, (gold, said) in enumerate(pairs):
        tally.add(gold, said, example=i)
    assert [one.example for one in tally.worst()] == expected


def test_the_worst_are_few_however_many_there_are() -> None:
    tally = Tally("choice", worst=3)
    losses = random.Random(0).sample(range(1_000), 1_000)
    for loss in losses:
        tally.add(0, 0, loss=loss, example={"loss": loss})  # dictionaries have no order
    assert tally.worst() == [Worst(loss, {"loss": loss}) for loss in (999, 998, 997)]
    assert len(tally.heap) == 3


def test_of_equally_bad_ones_the_first() -> None:
    tally = Tally("choice", worst=2)
    for i in range(6):
        tally.add(0, 1, loss=1.0, example={"number": i})
    assert [one.example["number"] for one in tally.worst()] == [0, 1]
    assert Tally("choice", worst=0).worst() == []


@pytest.mark.parametrize(("kind", "size"), [("one", 16), ("choice", 16), ("number", 24), ("tagging", 20), ("spans", 18)])
def test_an_example_takes_a_few_bytes(kind: str, size: int) -> None:
    pair: dict[str, Any] = {"tagging": ([(0, 1, "A")], []), "spans": (["x" * 1000], "y" * 1000)}
    tally = filled(kind, [pair.get(kind, (0, 1))] * 10, LABELS, worst=2)
    assert len(tally.kept) == 10 * size
    assert len(tally) == 10


# ---- two models


def test_two_models() -> None:
    first, second = (filled("one", classes(800, 3, seed, right), LABELS) for seed, right in ((1, 0.6), (2, 0.8)))
    found = compare(first, second)
    assert set(found.differences) == {"accuracy", "macro_f1", "weighted_f1", "matthews"}
    for name, one in found.differences.items():
        assert one.value == pytest.approx(second.values()[name] - first.values()[name])
        assert 0 < one.low < one.value < one.high
        assert one.p < 0.01
    assert found.mcnemar is not None
    assert found.mcnemar.second - found.mcnemar.first == second.right().sum() - first.right().sum()
    assert found.mcnemar.p < 0.001


@pytest.mark.parametrize("kind", ["many", "number", "tagging", "spans"])
def test_two_models_of_any_kind(kind: str) -> None:
    draw = random.Random(0)
    gold: dict[str, Any] = {"many": ["neg", "긍정"], "number": 1.0, "tagging": {(0, 1, "A"), (4, 5, "B")}, "spans": ["a b"]}
    near: dict[str, Any] = {"many": ["neg"], "number": 0.9, "tagging": {(0, 1, "A")}, "spans": "b"}
    far: dict[str, Any] = {"many": ["neutral"], "number": -3.0, "tagging": set(), "spans": "c"}
    golds = [gold[kind] if kind != "number" else draw.random() for _ in range(80)]
    first = filled(kind, [(one, near[kind] if draw.random() < 0.2 else far[kind]) for one in golds], LABELS)
    second = filled(kind, [(one, near[kind] if draw.random() < 0.9 else far[kind]) for one in golds], LABELS)
    found = compare(first, second)
    assert (found.mcnemar is None) == (kind == "number")
    name = "absolute_error" if kind == "number" else "f1"
    assert found.differences[name].p < 0.05
    assert (found.differences[name].value > 0) == (kind != "number")
    assert found.differences[name].value == pytest.approx(second.values()[name] - first.values()[name])


def test_a_model_against_itself() -> None:
    tally = filled("one", classes(100, 3), LABELS)
    found = compare(tally, tally)
    assert all((one.value, one.low, one.high, one.p) == (0, 0, 0, 1) for one in found.differences.values())
    assert found.mcnemar is not None
    assert found.mcnemar.p == 1


def test_other_examples_are_not_compared() -> None:
    first = filled("one", [(0, 0), (1, 1)], LABELS)
    for other in (
        filled("one", [(1, 0), (0, 1)], LABELS),
        filled("one", [(0, 0)], LABELS),
        filled("one", [(0, 0), (1, 1)], LABELS[::-1]),
        filled("choice", [(0, 0), (1, 1)]),
    ):
        with pytest.raises(UserError, match=r"^the two models were not measured on the same examples with the same labels; evaluate both on one file$"):
            compare(first, other)
    compare(first, filled("one", [(0, 1), (1, 0)], LABELS))
    spans = [filled("spans", [(gold, "a")]) for gold in (["a"], ["a"], ["b"])]
    compare(spans[0], spans[1])
    with pytest.raises(UserError, match="not measured on the same examples"):
        compare(spans[0], spans[2])
    many = [(i * 16, i * 16 + 1, "A") for i in range(50)]
    compare(*(filled("tagging", [(gold, [])]) for gold in (many, many[::-1])))  # of entities the order says nothing
    with pytest.raises(UserError, match="not measured on the same examples"):
        compare(*(filled("tagging", [(gold, [])]) for gold in (many, [*many[1:], (1, 2, "A")])))
