"""Metrics against the published ones to 1e-9: scikit-learn's and scipy's (GLUE's), seqeval's (CoNLL's), torchmetrics' (SQuAD's)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import seqeval.metrics
import seqeval.metrics.sequence_labeling
import sklearn.metrics
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_calibration_error
from torchmetrics.functional.text import squad

from unmask.tasks.metrics import answers, calibration, entities, scores, trust
from unmask.tasks.tagging import Word, marks
from unmask.tasks.tagging import entities as runs

CLOSE = {"rel": 1e-9, "abs": 1e-9}
SQUAD = Path("/tmp/data/squad/dev-v1.1.json")


@pytest.fixture
def precise() -> Iterator[None]:
    """torchmetrics adds up in torch's default precision: in float32 ten thousand questions are right to four digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---- labels

labelled = st.integers(2, 5).flatmap(lambda labels: st.lists(st.tuples(*[st.integers(0, labels - 1)] * 2), min_size=1, max_size=60))


@given(labelled)
def test_labels(pairs: list[tuple[int, int]]) -> None:
    gold, said = map(np.array, zip(*pairs, strict=True))
    assert scores.accuracy(gold, said) == pytest.approx(sklearn.metrics.accuracy_score(gold, said), **CLOSE)
    for average in ("macro", "micro", "weighted"):
        theirs = sklearn.metrics.f1_score(gold, said, average=average, zero_division=0)
        assert scores.f1(gold, said, average=average) == pytest.approx(theirs, **CLOSE), average
    theirs = sklearn.metrics.matthews_corrcoef(gold, said) if len({*gold, *said}) > 1 else 0  # it warns
    assert scores.matthews(gold, said) == pytest.approx(theirs, **CLOSE)
    for positive in (0, 1):
        theirs = sklearn.metrics.f1_score(gold == positive, said == positive, zero_division=0)
        assert scores.positive_f1(gold, said, positive=positive) == pytest.approx(theirs, **CLOSE)


@settings(max_examples=30)
@given(labelled, st.data())
def test_weights_are_scikit_learns(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    assume(len({one for pair in pairs for one in pair}) > 1)
    gold, said = map(np.array, zip(*pairs, strict=True))
    weights = np.array([data.draw(st.lists(st.integers(1, 5), min_size=len(gold), max_size=len(gold))) for _ in range(3)], float)
    for ours, theirs in (
        (scores.accuracy, sklearn.metrics.accuracy_score),
        (scores.f1, lambda *a, **k: sklearn.metrics.f1_score(*a, average="macro", zero_division=0, **k)),
        (scores.matthews, sklearn.metrics.matthews_corrcoef),
    ):
        assert ours(gold, said, weights) == pytest.approx([theirs(gold, said, sample_weight=row) for row in weights], **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_several_labels(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gold, chances = draw.random((200, 6)) < draw.random(6), np.round(draw.random((200, 6)), 2)  # rounded: some are equal
    gold[:, 4:] = False
    chances[:, 4] = 0  # neither true nor said
    said = chances > 0.6
    for average in ("macro", "micro", "weighted"):
        theirs = sklearn.metrics.f1_score(gold, said, average=average, zero_division=0)
        assert scores.f1(gold, said, average=average) == pytest.approx(theirs, **CLOSE)
    assert scores.accuracy(gold, said) == pytest.approx(sklearn.metrics.accuracy_score(gold, said), **CLOSE)
    there = gold[:, :4]
    assert scores.average_precision(gold, chances) == pytest.approx(sklearn.metrics.average_precision_score(there, chances[:, :4]), **CLOSE)
    assert scores.roc_area(gold, chances) == pytest.approx(sklearn.metrics.roc_auc_score(there, chances[:, :4]), **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_every_label(seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(300, 7))
    gold = np.where(draw.random(300) < 0.5, logits.argmax(1), draw.integers(0, 7, 300))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = range(7)
    for k in (1, 2, 6):
        assert scores.top(gold, logits, k=k) == pytest.approx(sklearn.metrics.top_k_accuracy_score(gold, logits, k=k, labels=labels), **CLOSE)
    assert scores.log_loss(gold, chances) == pytest.approx(sklearn.metrics.log_loss(gold, chances, labels=labels), **CLOSE)
    assert scores.roc_area(gold, chances) == pytest.approx(sklearn.metrics.roc_auc_score(gold, chances, multi_class="ovr"), **CLOSE)
    theirs = sklearn.metrics.brier_score_loss(gold, chances, labels=labels, scale_by_half=False)
    assert calibration.brier(gold, chances) == pytest.approx(theirs, **CLOSE)
    yes, chance = gold == 0, chances[:, 0]
    assert scores.log_loss(yes, chance) == pytest.approx(sklearn.metrics.log_loss(yes, chance), **CLOSE)
    assert scores.roc_area(yes, chance) == pytest.approx(sklearn.metrics.roc_auc_score(yes, chance), **CLOSE)
    assert calibration.brier(yes, chance) == pytest.approx(sklearn.metrics.brier_score_loss(yes, chance), **CLOSE)


def test_the_loss_of_the_impossible_is_scikit_learns() -> None:
    chances = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert scores.log_loss([1, 1, 0], chances) == pytest.approx(sklearn.metrics.log_loss([1, 1, 0], chances), **CLOSE)


@pytest.mark.parametrize("seed", range(20))
def test_thresholds_are_the_best_there_are(seed: int) -> None:
    """F1 at every point of scikit-learn's curve of precision and recall."""
    draw = np.random.default_rng(seed)
    gold, chances = draw.random((80, 3)) < 0.3, np.round(draw.random((80, 3)), draw.integers(1, 4))
    gold[0] = True
    for i, threshold in enumerate(scores.best_thresholds(gold, chances)):
        precision, recall, _ = sklearn.metrics.precision_recall_curve(gold[:, i], chances[:, i])
        best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300))
        assert scores.positive_f1(gold[:, i], chances[:, i] >= threshold) == pytest.approx(best, **CLOSE)


# ---- numbers

values = st.floats(-1e6, 1e6).map(lambda value: round(value, 6)) | st.sampled_from([0.0, 1.0, 2.5, 5.0])


@given(st.lists(st.tuples(values, values), min_size=2, max_size=60))
def test_numbers(pairs: list[tuple[float, float]]) -> None:
    gold, said = map(np.array, zip(*pairs, strict=True))
    for ours, theirs in (
        (scores.squared_error, sklearn.metrics.mean_squared_error),
        (scores.absolute_error, sklearn.metrics.mean_absolute_error),
        (scores.r2, sklearn.metrics.r2_score),
    ):
        assert ours(gold, said) == pytest.approx(theirs(gold, said), **CLOSE)
    assume(len(set(gold)) > 1)
    assume(len(set(said)) > 1)
    assert scores.spearman(gold, said) == pytest.approx(scipy.stats.spearmanr(gold, said).statistic, **CLOSE)
    assume(min(np.ptp(one) / np.abs(one).max() for one in (gold, said)) > 1e-6)  # less is lost to rounding in both, each in its way
    assert scores.pearson(gold, said) == pytest.approx(scipy.stats.pearsonr(gold, said).statistic, **CLOSE)


@settings(max_examples=40)
@given(st.lists(st.tuples(values, values, st.integers(0, 4)), min_size=2, max_size=40))
def test_an_example_that_counts_twice_is_there_twice(rows: list[tuple[float, float, int]]) -> None:
    gold, said, often = map(np.array, zip(*rows, strict=True))
    more, others = np.repeat(gold, often), np.repeat(said, often)
    assume(all(len(some) > 1 and np.ptp(some) > 1e-3 * np.abs(some).max() for some in (more, others)))
    weights = np.stack([often, often]).astype(float)
    for ours, theirs in ((scores.pearson, scipy.stats.pearsonr), (scores.spearman, scipy.stats.spearmanr)):
        assert ours(gold, said, weights) == pytest.approx([theirs(more, others).statistic] * 2, **CLOSE)
    assert scores.r2(gold, said, weights[0]) == pytest.approx(sklearn.metrics.r2_score(more, others), **CLOSE)


def test_correlations_of_many_numbers() -> None:
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 26, 20_000) / 5  # STS-B's scale
    said = gold + draw.normal(0, 2, len(gold))
    assert scores.spearman(gold, said) == pytest.approx(scipy.stats.spearmanr(gold, said).statistic, **CLOSE)
    assert scores.pearson(gold, said) == pytest.approx(scipy.stats.pearsonr(gold, said).statistic, **CLOSE)
    shifted = gold + 1e9  # cancels where squares are taken first
    assert scores.pearson(shifted, said) == pytest.approx(scipy.stats.pearsonr(shifted, said).statistic, **CLOSE)


# ---- entities

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG-X", "I-ORG-X"]
ENDED = [*TAGS, "E-PER", "S-PER", "E-LOC", "S-LOC"]


def read(tags: Sequence[str], known: Sequence[str]) -> set[entities.Entity]:
    return {(start, end, label) for label, start, end, _ in runs([Word(i, i + 1, tag, 1) for i, tag in enumerate(tags)], marks(known))}


def texts(known: Sequence[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    return st.lists(st.lists(st.tuples(*[st.sampled_from(known)] * 2), min_size=1, max_size=12), min_size=1, max_size=8)


@pytest.mark.parametrize("known", [TAGS, ENDED], ids=["IOB", "IOBES"])
@settings(max_examples=200)
@given(st.data())
def test_entities_are_seqevals(known: Sequence[str], data: st.DataObject) -> None:
    """Any tags at all, so most are broken: I after O, I after another label, E and S amid an entity."""
    found = data.draw(texts(known))
    gold, said = ([[pair[i] for pair in text] for text in found] for i in (0, 1))
    ours = [[read(tags, known) for tags in some] for some in (gold, said)]
    precision, recall, f1, _ = seqeval.metrics.sequence_labeling.precision_recall_fscore_support(gold, said, average="micro", zero_division=0)
    table = entities.entity_table(*ours)
    whole = [sum(getattr(line, name) for line in table.values()) for name in ("right", "gold", "said")]
    assert entities.entity_f1(*ours) == pytest.approx(f1, **CLOSE)
    assert entities.overlap_precision(*map(np.array, whole)) == pytest.approx(precision, **CLOSE)
    assert entities.overlap_recall(*map(np.array, whole)) == pytest.approx(recall, **CLOSE)
    theirs = seqeval.metrics.classification_report(gold, said, output_dict=True, zero_division=0) if table else {}  # it warns of nothing
    for label, line in table.items():
        row = theirs[label]
        assert (line.precision, line.recall, line.f1) == pytest.approx((row["precision"], row["recall"], row["f1-score"]), **CLOSE)
        assert line.gold == row["support"]
    assert set(table) == set(theirs) - {"micro avg", "macro avg", "weighted avg"}


def test_where_seqeval_differs() -> None:
    """It knows neither U, L nor M: two U of BILOU side by side are one entity to it, and finding the first of them is worth nothing."""
    gold, said, known = ["U-PER", "U-PER"], ["U-PER", "O"], ["U-PER", "B-PER", "I-PER", "L-PER", "O"]
    assert read(gold, known) == {(0, 1, "PER"), (1, 2, "PER")}
    assert entities.entity_f1([read(gold, known)], [read(said, known)]) == pytest.approx(2 / 3)
    with pytest.warns(UserWarning, match="seems not to be NE tag"):
        assert seqeval.metrics.f1_score([gold], [said]) == 0


# ---- questions


def spoiled(text: str, context: str, draw: random.Random) -> str:
    """An answer that is right, nearly right or wrong in one of the ways there are."""
    words = context.split()
    place = draw.randrange(len(words))
    other = " ".join(words[place : place + draw.randint(1, 5)])
    cut = text.split()
    ways: list[Callable[[], str]] = [
        lambda: text,
        lambda: " ".join(cut[: max(1, len(cut) - 1)]),
        lambda: " ".join(cut[1:]),
        lambda: text[: max(1, len(text) // 2)],
        lambda: f"the {text}",
        lambda: f"An  {text.upper()},",
        lambda: f'"{text}".',
        lambda: text.replace(" ", "\u00a0\t"),
        lambda: f"{text} {other}",
        lambda: f"{text} {text}",
        lambda: other,
        lambda: "",
        lambda: "the",
        lambda: "...",
    ]
    return draw.choice(ways)()


def same_as_published(questions: list[tuple[list[str], str]]) -> tuple[float, float]:
    theirs = squad(
        [{"prediction_text": said, "id": str(i)} for i, (_, said) in enumerate(questions)],
        [{"answers": {"text": gold, "answer_start": [0] * len(gold)}, "id": str(i)} for i, (gold, _) in enumerate(questions)],
    )
    f1 = scores.mean([answers.overlap_of_words(*one) for one in questions])
    exact = scores.mean([answers.exact(*one) for one in questions])
    assert 100 * f1 == pytest.approx(float(theirs["f1"]), rel=0, abs=1e-9)
    assert 100 * exact == pytest.approx(float(theirs["exact_match"]), rel=0, abs=1e-9)
    return f1, exact


QUIRKS = [
    "the Cat",
    "a cat's mat",
    "U.S.",
    "$5,000 (1990)",
    "état-major",
    "서울 시",
    "a는 형a",
    "İstanbul",
    "Café\u00a0",
    "東京。",
    "An an AN",
    "—",
    "x\u3000y",
]


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_torchmetrics(seed: int) -> None:
    draw = random.Random(seed)
    context = " ".join(QUIRKS * 2)
    questions = []
    for _ in range(300):
        gold = draw.sample(QUIRKS, draw.randint(1, 3))
        questions.append((gold, spoiled(draw.choice(gold), context, draw)))
    f1, exact = same_as_published(questions)
    assert 0.1 < exact < f1 < 0.9, "a test that saw only part"


@pytest.mark.evidence
@pytest.mark.usefixtures("precise")
@pytest.mark.skipif(not SQUAD.exists(), reason="SQuAD's dev-v1.1.json is not here")
@pytest.mark.parametrize("seed", range(3))
def test_all_of_squads_dev_set(seed: int) -> None:
    draw = random.Random(seed)
    paragraphs = [paragraph for article in json.loads(SQUAD.read_text(encoding="utf-8"))["data"] for paragraph in article["paragraphs"]]
    questions = []
    for paragraph in paragraphs:
        for asked in paragraph["qas"]:
            gold = [one["text"] for one in asked["answers"]]
            questions.append((gold, spoiled(draw.choice(gold), paragraph["context"], draw)))
    assert len(questions) == 10_570
    f1, exact = same_as_published(questions)
    assert 0.3 < exact < f1 < 0.9


def searched(scored: Sequence[float], said: Sequence[str], answerable: Sequence[bool], none: Sequence[float]) -> tuple[float, float]:
    """evaluate-v2.0's find_best_thresh, as a plain loop."""
    running = best = float(sum(not one for one in answerable))
    threshold = 0.0
    for i in sorted(range(len(none)), key=lambda place: none[place]):
        running += scored[i] if answerable[i] else -bool(said[i])
        if running > best:
            best, threshold = running, none[i]
    return best / len(scored), threshold


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.booleans(), st.booleans(), st.floats(1e-6, 1) | st.just(0.5)), min_size=1, max_size=40))
def test_the_threshold_of_no_answer_is_the_published_one(rows: list[tuple[float, bool, bool, float]]) -> None:
    said = ["x" if one else "" for _, _, one, _ in rows]
    answerable, none = [one[1] for one in rows], [one[3] for one in rows]
    scored = [value if there else float(not told) for (value, there, told, _) in rows]
    found = answers.best_threshold(scored, said, answerable, none)
    assert (found.score, found.value) == searched(scored, said, answerable, none)
    if len(set(none)) == len(none):
        reached = answers.with_none(np.array(scored), np.array(answerable), np.array(none), found.value)
        assert reached.mean() == pytest.approx(found.score, **CLOSE)


# ---- trust


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_mcnemar(both: int, one: int, other: int) -> None:
    assume(both + one + other)
    first = np.array([1] * both + [1] * one + [0] * other)
    second = np.array([1] * both + [0] * one + [1] * other)
    found = trust.mcnemar(first, second)
    assert (found.first, found.second) == (one, other)
    assert found.p == pytest.approx(min(1.0, 2 * scipy.stats.binom.cdf(min(one, other), one + other, 0.5)), **CLOSE)


def test_the_interval_is_scipys() -> None:
    """Both are drawn: they agree as far as 20,000 resamples show."""
    draw = np.random.default_rng(3)
    gold = draw.normal(size=120)
    said = gold + draw.normal(size=120)
    theirs = scipy.stats.bootstrap(
        (gold, said), lambda x, y: scipy.stats.pearsonr(x, y).statistic, paired=True, vectorized=False, n_resamples=5_000, method="percentile", rng=draw
    ).confidence_interval
    ours = trust.intervals({"pearson": lambda weights: scores.pearson(gold, said, weights)}, np.ones(120), 20_000)["pearson"]
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


@pytest.mark.parametrize("right", [0, 1, 37, 99, 100])
def test_wilsons_interval(right: int) -> None:
    theirs = scipy.stats.binomtest(right, 100).proportion_ci(method="wilson")
    ours = trust.share(right, 100)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), **CLOSE)


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("bins", [10, 15])
def test_calibration_is_torchmetrics(bins: int) -> None:
    """Of a yes or no that is always said to be yes, so that the probability and whether it is right are any at all."""
    draw = np.random.default_rng(bins)
    chances = draw.random(2_000)
    right = draw.random(2_000) < chances**2
    theirs = binary_calibration_error(torch.from_numpy(chances), torch.from_numpy(right.astype(np.int64)), n_bins=bins, norm="l1")
    assert calibration.calibration_error(calibration.reliability(chances, right, bins)) == pytest.approx(float(theirs), **CLOSE)


@pytest.mark.parametrize("labels", [1, 2, 9])
@pytest.mark.parametrize("truth", [0.3, 1.0, 4.0])
def test_the_temperature_is_scipys(labels: int, truth: float) -> None:
    draw = np.random.default_rng(labels)
    logits = draw.normal(0, 2, (3_000, max(labels, 2)))
    logits[:, 0] = 0 if labels == 1 else logits[:, 0]
    gold = (logits / truth + draw.gumbel(size=logits.shape)).argmax(1)

    def loss(temperature: float) -> float:
        return float(np.mean(np.log(np.exp(logits / temperature).sum(1)) - logits[np.arange(len(gold)), gold] / temperature))

    theirs = scipy.optimize.minimize_scalar(loss, bounds=(0.05, 50), method="bounded", options={"xatol": 1e-10}).x
    found = calibration.temperature(logits[:, 1] if labels == 1 else logits, gold)
    assert found == pytest.approx(theirs, rel=1e-5)
    assert found == pytest.approx(truth, rel=0.25)


def test_nothing_of_korean_is_lost() -> None:
    text = "대한민국의 수도는 서울특별시이다 a는 형a"
    assert answers.normalised(text) == text
    assert re.sub(" ", "", answers.normalised("《훈민정음》 「해례본」")) == "《훈민정음》「해례본」"
