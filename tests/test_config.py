"""Durations, and JSON and typed words read strictly: what fits is taken, what does not is one sentence."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.config import Clock, Duration, fitted, overridden, plain
from unmask.errors import UserError

STEADY = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("said", "amount", "unit"),
    [
        ("20000", 20_000, "steps"),
        ("500steps", 500, "steps"),
        ("1e9tok", 1e9, "tokens"),
        ("2.5e9tok", 2.5e9, "tokens"),
        ("3ep", 3, "epochs"),
        ("0.5ep", 0.5, "epochs"),
        ("30s", 30, "seconds"),
        ("10min", 600, "seconds"),
        ("1.5h", 5400, "seconds"),
        ("2%", 0.02, "share"),
        (" 90 ep ", 90, "epochs"),
        ("0", 0, "steps"),
    ],
)
def test_what_a_duration_says(said: str, amount: float, unit: str) -> None:
    assert Duration.of(said) == Duration(amount, unit)


@pytest.mark.parametrize(
    "said", ["", " ", "ten", "-5", "+5", "5days", "1e", "1e-3", "5%%", "% 5", "1,000", "nan", "inf", "10MIN", "1e9tokens", ".5ep", "5 5", "5\n6"]
)
def test_what_is_no_duration(said: str) -> None:
    with pytest.raises(UserError) as told:
        Duration.of(said)
    assert str(told.value) == f"{said!r} is no duration; write it as 20000 (steps), 1e9tok, 3ep, 10min or 2%"


@pytest.mark.parametrize("unit", ["steps", "tokens", "epochs", "seconds", "share"])
def test_it_goes_by_in_its_own_unit(unit: str) -> None:
    clock = Clock(steps=10, tokens=20, epochs=30, seconds=40, share=50)
    assert Duration(4, unit).passed(clock) == {"steps": 2.5, "tokens": 5, "epochs": 7.5, "seconds": 10, "share": 12.5}[unit]
    assert Duration(4, unit).passed(replace(clock, **{unit: 0})) == 0
    assert Duration(0, unit).passed(clock) == math.inf


@pytest.mark.parametrize("said", ["0", "0tok", "0ep", "0s", "0%"])
def test_nothing_is_due_every_0(said: str) -> None:
    assert not Duration.of(said).due(Clock(), Clock(1, 1, 1, 1, 1))


@STEADY
@given(every=st.integers(1, 40), steps=st.integers(1, 200))
def test_every_so_many_steps(every: int, steps: int) -> None:
    due = [now for now in range(1, steps + 1) if Duration.of(str(every)).due(Clock(now - 1), Clock(now))]
    assert due == list(range(every, steps + 1, every))


@STEADY
@given(percent=st.integers(1, 100), steps=st.integers(1, 200))
def test_every_share_of_a_run(percent: int, steps: int) -> None:
    """Counted in fractions, where nothing is rounded: at the first step that has made a share whole."""
    due = [now for now in range(1, steps + 1) if Duration.of(f"{percent}%").due(Clock(share=(now - 1) / steps), Clock(share=now / steps))]
    whole = [math.floor(Fraction(100 * now, percent * steps)) for now in range(steps + 1)]
    assert due == [now for now in range(1, steps + 1) if whole[now] > whole[now - 1]]
    assert steps < 100 or len(due) == 100 // percent


@STEADY
@given(unit=st.sampled_from(["tok", "s", "ep"]), every=st.integers(1, 50), parts=st.lists(st.integers(0, 90_000), max_size=60))
def test_once_a_period_however_it_goes_on(unit: str, every: int, parts: list[int]) -> None:
    """Thousandths of a unit at a time, or many units: once for each period that something ended in, and never for one that nothing did."""
    reached = list(itertools.accumulate(parts, initial=0))
    clocks = [Clock(tokens=at / 1000, epochs=at / 1000, seconds=at / 1000) for at in reached]
    due = sum(Duration.of(f"{every}{unit}").due(before, now) for before, now in itertools.pairwise(clocks))
    assert due == len({at // (1000 * every) for at in reached} - {0})


# ---- dataclasses out of JSON and words


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate > 1:
            raise ValueError(f"a rate of {self.rate} is above 1")


@dataclass(frozen=True)
class Outer:
    name: str = "a"
    count: int = 1
    share: float = 0.1
    on: bool = False
    kind: Literal["one", "two"] = "one"
    perhaps: float | None = None
    stages: tuple[tuple[float, int], ...] = ((0.0, 1),)
    pair: tuple[float, float] = (0.9, 0.999)
    words: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    loose: Any = None

    terms: ClassVar[tuple[str, ...]] = ("no", "field")


FIELDS = ", ".join(sorted(one.name for one in fields(Outer)))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
OUTER = st.builds(
    Outer,
    name=st.text(),
    count=st.integers(),
    share=NUMBERS,
    on=st.booleans(),
    kind=st.sampled_from(["one", "two"]),
    perhaps=st.none() | NUMBERS,
    stages=st.lists(st.tuples(NUMBERS, st.integers()), max_size=3).map(tuple),
    pair=st.tuples(NUMBERS, NUMBERS),
    words=st.lists(st.text(), max_size=3).map(tuple),
    labels=st.dictionaries(st.text(), st.integers(), max_size=3),
    inner=st.builds(Inner, st.floats(-1, 1), st.lists(st.integers(), max_size=3).map(tuple)),
    loose=st.none() | st.integers() | st.lists(st.text(), max_size=2),
)


@STEADY
@given(thing=OUTER)
def test_out_of_json_comes_what_went_in(thing: Outer) -> None:
    found = plain(thing)
    assert found == json.loads(json.dumps(found)), "plain is what JSON has: no tuples, no dataclasses"
    assert fitted(Outer(), "a.json", json.loads(json.dumps(found))) == thing
    assert "terms" not in found


def test_what_a_file_does_not_say_stays() -> None:
    before = Outer(count=7, inner=Inner(0.25, (9,)))
    assert fitted(before, "a.json", {}) == before
    assert fitted(before, "a.json", {"inner": {"sizes": []}}) == replace(before, inner=Inner(0.25, ()))
    found = fitted(before, "a.json", {"share": 1})
    assert type(found.share) is float


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"count": 1.0}, "a.json says count is 1.0; it should be a whole number"),
        ({"count": True}, "a.json says count is true; it should be a whole number"),
        ({"count": "1"}, 'a.json says count is "1"; it should be a whole number'),
        ({"count": None}, "a.json says count is null; it should be a whole number"),
        ({"share": True}, "a.json says share is true; it should be a number"),
        ({"share": "0.1"}, 'a.json says share is "0.1"; it should be a number'),
        ({"share": math.nan}, "a.json says share is NaN; it should be a number"),
        ({"share": math.inf}, "a.json says share is Infinity; it should be a number"),
        ({"share": 10**400}, f"a.json says share is 1{'0' * 59}; it should be a number"),
        ({"on": 1}, "a.json says on is 1; it should be true or false"),
        ({"name": 3}, "a.json says name is 3; it should be a text"),
        ({"kind": "three"}, 'a.json says kind is "three"; it should be one or two'),
        ({"kind": ["one"]}, 'a.json says kind is ["one"]; it should be one or two'),
        ({"perhaps": "x"}, 'a.json says perhaps is "x"; it should be a number, or null'),
        ({"stages": [[0.0, 1.5]]}, "a.json says stages is [[0.0, 1.5]]; it should be a list (a list of 2 (a number each) each)"),
        ({"stages": [0.0, 1]}, "a.json says stages is [0.0, 1]; it should be a list (a list of 2 (a number each) each)"),
        ({"pair": [0.9]}, "a.json says pair is [0.9]; it should be a list of 2 (a number each)"),
        ({"words": "abc"}, 'a.json says words is "abc"; it should be a list (a text each)'),
        ({"labels": [1]}, "a.json says labels is [1]; it should be an object (a whole number each)"),
        ({"labels": {"a": 0.5}}, 'a.json says labels is {"a": 0.5}; it should be an object (a whole number each)'),
        ({"inner": 3}, "a.json says inner is 3; it should be an object"),
        ({"inner": {"rate": "x"}}, 'a.json says rate is "x"; it should be a number'),
        ({"inner": {"rate": 2.0}}, "a.json: a rate of 2.0 is above 1"),
        ({"cuont": 3}, "a.json has a field 'cuont' that is not known, did you mean count?"),
        ({"inner": {"size": []}}, "a.json has a field 'size' that is not known, did you mean sizes?"),
        ({"inner": {"x": []}}, "a.json has a field 'x' that is not known; known: rate, sizes"),
        ({"terms": ["a"]}, f"a.json has a field 'terms' that is not known; known: {FIELDS}"),
    ],
)
def test_what_a_file_says_wrongly(found: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as told:
        fitted(Outer(), "a.json", found)
    assert str(told.value) == says


@pytest.mark.parametrize(
    ("name", "word", "changes"),
    [
        ("name", "two words", {"name": "two words"}),
        ("name", "3", {"name": "3"}),
        ("name", "null", {"name": "null"}),
        ("count", "20", {"count": 20}),
        ("count", "-20", {"count": -20}),
        ("count", "1e3", {"count": 1000}),
        ("share", "2e-4", {"share": 2e-4}),
        ("share", "1", {"share": 1.0}),
        ("on", "true", {"on": True}),
        ("on", "yes", {"on": True}),
        ("kind", "two", {"kind": "two"}),
        ("perhaps", "0.3", {"perhaps": 0.3}),
        ("stages", "[[0, 128], [0.9, 512]]", {"stages": ((0.0, 128), (0.9, 512))}),
        ("pair", "0.9,0.98", {"pair": (0.9, 0.98)}),
        ("pair", "[0.9, 0.98]", {"pair": (0.9, 0.98)}),
        ("words", "a,b c", {"words": ("a", "b c")}),
        ("words", "a", {"words": ("a",)}),
        ("labels", '{"no": 0}', {"labels": {"no": 0}}),
        ("inner.rate", "0.25", {"inner": Inner(0.25)}),
        ("inner.sizes", "3,1e2", {"inner": Inner(sizes=(3, 100))}),
        ("inner", '{"rate": 0.75}', {"inner": Inner(0.75)}),
    ],
)
def test_what_is_typed(name: str, word: str, changes: dict[str, Any]) -> None:
    found = overridden(Outer(), name, word)
    assert found == replace(Outer(), **changes)
    assert [type(getattr(found, one)) for one in changes] == [type(value) for value in changes.values()]


@pytest.mark.parametrize(
    ("name", "word", "value"), [("perhaps", "none", None), ("perhaps", "null", None), ("on", "no", False), ("on", "false", False), ("words", "", ())]
)
def test_what_is_typed_to_take_something_back(name: str, word: str, value: Any) -> None:
    full = Outer(on=True, perhaps=0.5, words=("a",))
    assert overridden(full, name, word) == replace(full, **{name: value})


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("cuont", "3", "there is no field cuont, did you mean count?"),
        ("inner.rat", "3", "there is no field inner.rat, did you mean rate?"),
        ("inner.x", "3", "there is no field inner.x; known: rate, sizes"),
        ("terms", "a,b", f"there is no field terms; known: {FIELDS}"),
        ("count.x", "3", "count has no fields, so there is no count.x; it is a whole number"),
        ("inner.rate.x", "3", "inner.rate has no fields, so there is no inner.rate.x; it is a number"),
        ("count", "1.5", "--count 1.5 is not of its kind; it should be a whole number"),
        ("count", "many", "--count many is not of its kind; it should be a whole number"),
        ("count", "true", "--count true is not of its kind; it should be a whole number"),
        ("count", "1e999", "--count 1e999 is not of its kind; it should be a whole number"),
        ("share", "nan", "--share nan is not of its kind; it should be a number"),
        ("share", "NaN", "--share NaN is not of its kind; it should be a number"),
        ("share", "1" + "0" * 400, f"--share 1{'0' * 400} is not of its kind; it should be a number"),
        ("share", "null", "--share null is not of its kind; it should be a number"),
        ("on", "1", "--on 1 is not of its kind; it should be true or false"),
        ("kind", "One", "--kind One is not of its kind; it should be one or two"),
        ("perhaps", "x", "--perhaps x is not of its kind; it should be a number, or null"),
        ("stages", "128", "--stages 128 is not of its kind; it should be a list (a list of 2 (a number each) each)"),
        ("stages", "[[0, 1.5]]", "--stages [[0, 1.5]] is not of its kind; it should be a list (a list of 2 (a number each) each)"),
        ("stages", "[" * 100_000, f"--stages {'[' * 100_000} is not of its kind; it should be a list (a list of 2 (a number each) each)"),
        ("pair", "0.9", "--pair 0.9 is not of its kind; it should be a list of 2 (a number each)"),
        ("inner", "3", "--inner 3 is not of its kind; it should be an object"),
        ("inner.rate", "x", "--inner.rate x is not of its kind; it should be a number"),
        ("inner.rate", "2", "inner.rate: a rate of 2.0 is above 1"),
    ],
)
def test_what_is_typed_wrongly(name: str, word: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        overridden(Outer(), name, word)
    assert str(told.value) == says
