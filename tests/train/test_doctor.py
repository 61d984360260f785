"""The doctor of a run: each thing that goes wrong is said once, and of a run in health nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLM
from unmask.objectives.causal import Causal
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.objectives.rtd import RTD
from unmask.train.doctor import WINDOW, Doctor

ENTROPY = 6.5
Row = dict[str, float]


def healthy(step: int, of: int = 4000) -> Row:
    """The loss falls from what nobody knows to 2.5, some gradients are clipped, next sentence is learned halfway."""
    share = step / of
    loss = 2.5 + 8 * math.exp(-6 * share)
    return {
        "step": step,
        "share": share,
        "loss": loss + 0.5,
        "words.loss": loss,
        "next.right": 0.5 + 0.4 * share,
        "norm": 0.5 + step % 3,
        "clip": 1.0,
        "through": 0.9,
    }


def said(
    row: Callable[[int], Row],
    count: int = 1200,
    begin: int = 0,
    entropy: float = ENTROPY,
    speed: Callable[[int], float] = lambda step: 1e4,
    objectives: Sequence[Objective] = (MLM(), NSP()),
) -> list[str]:
    doctor, found = Doctor(objectives, entropy), []
    for step in range(begin, begin + count, 50):
        found += doctor.look([row(one) for one in range(step, step + 50)], speed(step))
    return found


def with_(**changes: float | Callable[[int], float]) -> Callable[[int], Row]:
    return lambda step: {**healthy(step), **{name.replace("_", "."): one(step) if callable(one) else one for name, one in changes.items()}}


@pytest.mark.parametrize("begin", [0, 2000])
def test_of_health_nothing_is_said(begin: int) -> None:
    assert said(healthy, 2000, begin) == []


ILL: dict[str, tuple[Callable[[int], Row], str]] = {
    "plateau": (with_(words_loss=6.4), "the loss of masked words stays at 6.40, and who knows only how frequent each piece is has 6.50"),
    "clipped": (
        with_(norm=lambda step: 8.0 + step % 3),
        "every one of the last 200 gradients was clipped (their norm is 9.0, the limit 1): lower optimizer.lr, or raise optimizer.clip",
    ),
    "easy": (with_(next_right=0.99), "next sentence is answered right 99.0% of the time: too easy"),
}


@pytest.mark.parametrize("kind", ILL)
def test_each_is_named_once(kind: str) -> None:
    row, says = ILL[kind]
    found = said(row, 3000)
    assert len(found) == 1
    assert found[0].startswith(says)


def test_why_it_stays_is_read_off_the_gradient() -> None:
    """That no longer reaches the first layer, or does."""
    (bold,) = said(with_(words_loss=6.4, through=0.002))
    assert bold == (
        "the loss of masked words stays at 6.40, and who knows only how frequent each piece is has 6.50: the first layer's gradient is 0.2% of "
        "the last one's, so the rate was too bold; begin again with a lower optimizer.lr, a longer warm-up, or a pre-norm model"
    )
    (timid,) = said(with_(words_loss=6.4, through=0.8))
    assert timid.endswith("has 6.50: the gradient reaches the first layer, so it may only need longer; a higher optimizer.lr or Muon gets there sooner")


MEASURED = {  # validation loss every 250 steps, and the first layer's gradient by the last one's (docs/log.md)
    "12 layers at 3e-3": ((6.54, 6.45, 6.44, 6.44, 6.44, 6.43, 6.43, 6.46, 6.46, 6.44), 0.002),
    "12 layers at 1e-3": ((6.47, 6.37, 6.24, 6.18, 6.11, 6.04, 6.02, 5.99, 5.98, 5.95), 0.9),
    "2 layers at 3e-3": ((6.47, 6.25, 6.10, 6.08, 6.06, 6.02, 6.04, 6.04, 6.01, 5.99), 1.1),
}


@pytest.mark.parametrize("kind", MEASURED)
def test_runs_that_were_measured(kind: str) -> None:
    losses, through = MEASURED[kind]

    def row(step: int) -> Row:
        at = min(max(step / 250 - 1, 0.0), 8.99)
        loss = losses[int(at)] + (at % 1) * (losses[int(at) + 1] - losses[int(at)])
        return {"step": step, "share": step / 4000, "words.loss": loss, "norm": 0.4, "through": through}

    found = said(row, 2500, entropy=6.376)
    assert len(found) == (kind == "12 layers at 3e-3")
    assert all(one.startswith("the loss of masked words stays at 6.44") and "too bold" in one for one in found)


@pytest.mark.parametrize(
    ("objective", "term", "says"),
    [
        (MLM(unit="span"), "words", "masked words"),
        (Causal(), "words", "words that follow"),
        (BiLM(), "ahead", "words that follow"),
        (BiLM(), "back", "words that come before"),
        (RTD(), "words", "the generator's masked words"),
    ],
)
def test_each_objective_by_its_own_name(objective: Objective, term: str, says: str) -> None:
    """Of two directions, the one that is ill."""
    row = with_(**{**{f"{one}_loss": 5.0 for one in objective.terms}, f"{term}_loss": 6.4})
    found = said(row, objectives=(objective,))
    assert len(found) == 1
    assert found[0].startswith(f"the loss of {says} stays at 6.40")


def test_the_order_of_sentences_has_another_remedy() -> None:
    (found,) = said(with_(next_right=0.99), objectives=(MLM(), NSP("order")))
    assert found == "the order of sentences is answered right 99.0% of the time: too easy, so it teaches nothing; leave it out with --objective mlm"


def test_all_at_once_are_each_said() -> None:
    found = said(with_(words_loss=6.4, norm=9.0, next_right=0.99), 3000, speed=lambda step: 1e4 if step < 100 else 5e3)
    assert sorted(one.split()[0] for one in found) == ["every", "it", "next", "the"]


@pytest.mark.parametrize(
    "row",
    [
        with_(words_loss=lambda step: 6.5 - step / 7000),  # it falls, if slowly: the last ones by 1.3% within 600 steps
        with_(words_loss=6.2),  # lower than who knows frequencies alone
        with_(words_loss=6.4, lr=lambda step: 1e-4 * step),  # the rate still rises
        with_(words_loss=6.4, share=0.95),  # late: the rate is nearly zero, and nothing should move
        with_(words_loss=lambda step: 9.0 if step < 600 else 6.4),  # it came down not long ago
    ],
)
def test_it_is_no_plateau(row: Callable[[int], Row]) -> None:
    assert said(row) == []


def test_where_the_entropy_is_not_known() -> None:
    assert said(with_(words_loss=6.4), entropy=math.inf) == []


@pytest.mark.parametrize(
    "row",
    [
        with_(norm=lambda step: 9.0 if step % 150 else 0.9),  # one of the last ones was not
        with_(norm=9.0, clip=0.0),  # nothing is clipped
        with_(next_right=0.97),
        with_(next_right=lambda step: 1.0 if step % 2 else 0.96),  # half of the batches are easy
    ],
)
def test_what_is_nearly_ill(row: Callable[[int], Row]) -> None:
    assert said(row) == []


def test_nothing_is_said_before_there_is_something_to_see() -> None:
    ill = with_(words_loss=6.4, norm=9.0, next_right=0.99)
    assert said(ill, 2 * WINDOW) == []
    assert len(said(ill, 2 * WINDOW + 50)) == 2
    assert said(ill, WINDOW - 50, begin=5000) == [], "a run that was resumed has few rows"
    assert [one for one in said(ill, 4 * WINDOW - 50) if "stays at" in one] == []
    assert [one for one in said(ill, 4 * WINDOW) if "stays at" in one]


def test_throughput_that_fell() -> None:
    def fell(to: float) -> list[str]:
        return said(healthy, 2000, speed=lambda step: 1e4 if step < 1000 else to)

    assert fell(5e3) == ["it makes 5,000 tokens/s and has made 10,000: something else uses the machine, or the disk of the shards is slow"]
    assert fell(7e3) == []
    assert fell(0.0) == [], "it was not measured"


def test_runs_without_words_or_next_sentence() -> None:
    def bare(step: int) -> Row:
        return {"step": step, "share": 0.1, "loss": 6.4, "norm": 0.5}

    assert said(bare) == []


def test_losses_that_are_not_finite_are_passed_over() -> None:
    found = said(with_(words_loss=lambda step: math.nan if step % 7 == 0 else 6.4))
    assert len(found) == 1
    assert found[0].startswith("the loss of masked words stays at 6.40")
