"""A run made ready: the vocabulary is the shards', what cannot be is refused before anything is computed, and what is said of it is so."""

from __future__ import annotations

import json
import math
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

import corpora
import runs
from unmask.config import Duration
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig, Layer
from unmask.model.layout import CAUSAL, FULL, Packed, Padded
from unmask.objectives.causal import Causal
from unmask.objectives.mlm import MLM
from unmask.tokenizer import Tokenizer
from unmask.tokenizer.learn import learn
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import Begin, Step
from unmask.train.optim import Optimizer
from unmask.train.prepared import FREE, Prepared, _differences, prepared
from unmask.train.run import Run
from unmask.train.schedule import Schedule


def ready(run: Run, group: Group | None = None) -> Prepared:
    return Prepared(run, Path(), group or Group())


def step(made: Prepared) -> Step:
    feed = made.feed(Duration.of("10"), Begin(), {})
    try:
        return next(iter(feed))
    finally:
        feed.close()


def gradients(run: Run) -> dict[str, Tensor]:
    made = ready(run)
    loop.backward(made, step(made))
    return {name: p.grad for name, p in made.precision.masters.items() if p.grad is not None}


def with_data(run: Run, **changes: Any) -> Run:
    return replace(run, data=replace(run.data, **changes))


# ---- what it is made of


def test_the_vocabulary_is_the_shards(shards: Path) -> None:
    """Whatever the shape says; also where it stands in for padding."""
    run = runs.small(shards)
    run = replace(run, model=replace(run.model, embed=replace(run.model.embed, vocabulary=30_522, padding=77)))
    made, tokenizer = ready(run), Tokenizer.load(shards / "tokenizer")
    embed = made.loaded.model.config.embed
    assert isinstance(embed, TextConfig)
    assert (embed.vocabulary, embed.padding) == (tokenizer.size, tokenizer.special("pad"))
    assert made.loaded.model.embed.words.weight.shape[0] == tokenizer.size
    assert dict(made.loaded.model.config.heads) == {"words": tokenizer.size, "next": 2}
    assert made.loaded.tokenizer is not None
    assert made.loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert made.loaded.card.length == 64
    assert made.terms == ("words", "next")


def test_the_same_seed_is_the_same_model(shards: Path) -> None:
    one, two, other = (ready(runs.small(shards, seed=seed)).precision.masters for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.embed.words.weight"], other["model.embed.words.weight"])


def test_shards_of_two_tokenizers(shards: Path, tmp_path: Path) -> None:
    texts = runs.TEXTS[:40]
    other = corpora.shards(tmp_path, learn(texts, 300, coverage=0.99).tokenizer, texts)
    with pytest.raises(UserError, match=r"was made with another tokenizer than the other shards' \(\d+ entries to 400\); run unmask prepare with that one"):
        ready(with_data(runs.small(shards), path=(str(shards), str(other))))


def test_pictures_are_refused(shards: Path) -> None:
    with pytest.raises(UserError, match="a vit reads pictures, and shards hold text; choose a family of text, such as bert"):
        ready(runs.small(shards, model=families.shape("vit.base")))


@pytest.fixture(scope="module")
def folder(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to go on from, that knows nothing."""
    place = tmp_path_factory.mktemp("start") / "model"
    store.save(ready(runs.small(shards, seed=5)).folder({}), place)
    return place


def test_going_on_from_a_model_takes_its_weights(folder: Path, shards: Path) -> None:
    made = ready(runs.small(shards, start=str(folder)))
    weights = {f"model.{name}": p for name, p in store.load(folder).model.named_parameters()}
    assert weights.keys() == made.precision.masters.keys()
    assert all(torch.equal(p, weights[name]) for name, p in made.precision.masters.items())


@pytest.mark.parametrize("start", [False, True])
def test_sequences_longer_than_the_positions(start: bool, folder: Path, shards: Path) -> None:
    """Also where the shape in the recipe has more, but not the model that is gone on from."""
    run = with_data(runs.small(shards), longest=((0.0, 16), (0.5, 65)))
    if start:
        run = replace(run, start=str(folder), model=families.shape("bert.base"))
    remedy = "lower data.longest" if start else "lower data.longest or raise model.embed.positions"
    with pytest.raises(UserError, match=rf"sequences of 65 tokens are longer than the 64 positions of the model; {remedy}$"):
        ready(run)
    assert ready(with_data(run, longest=((0.0, 16), (0.5, 64))))


def test_it_is_let_go(shards: Path) -> None:
    """A run that is over leaves nothing behind, on a GPU above all."""
    made = ready(runs.small(shards))
    step(made)
    gone = weakref.ref(made)
    del made
    assert gone() is None


def test_an_objective_says_how_far_the_model_sees(shards: Path) -> None:
    assert ready(runs.small(shards)).loaded.model.encoder.config.reach == (FULL,)
    made = ready(runs.small(shards, objective=(Causal(),)))
    assert made.loaded.model.encoder.config.reach == made.loaded.model.config.encoder.reach == (CAUSAL,)  # type: ignore[attr-defined]


# ---- ranks


@pytest.mark.parametrize("sizes", [((0.0, 2),), ((0.0, 8), (0.5, 2)), ((0.0, 2), (0.5, 8))])
def test_ranks_that_would_have_nothing(sizes: tuple[tuple[float, int], ...], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_data(runs.small(shards), step=sizes)
    with pytest.raises(UserError, match=r"3 ranks share out steps of 2 micro-batches, and one would have none; raise data.step or start fewer"):
        prepared(run, tmp_path / "run", Group(0, 3))
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(Group, "wait", lambda self: None)
    made = prepared(run, tmp_path / "run", Group(1, 2))
    assert not (tmp_path / "run").exists(), "the first rank writes"
    assert [first for first, _ in step(made).parts] == list(range(1, sizes[0][1], 2))


# ---- the folder of a run

OTHER: dict[str, Any] = {
    "together": 3,
    "recompute": True,
    "shard": True,
    "track": "tensorboard",
    "keep": 9,
    "save": "7",
    "compile": "auto",
    "precision": "float64",
}


def test_what_may_change_when_a_run_goes_on(shards: Path, tmp_path: Path) -> None:
    assert OTHER.keys() == FREE
    run = runs.small(shards)
    prepared(run, tmp_path / "run", Group())
    for name, value in OTHER.items():
        assert getattr(run, name) != value
        prepared(replace(run, **{name: value}), tmp_path / "run", Group())
        assert json.loads((tmp_path / "run" / "recipe.json").read_text())[name] == value, "what counts now is what is written"
    prepared(replace(run, **OTHER), tmp_path / "run", Group())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda run: replace(run, seed=1), "seed"),
        (lambda run: replace(run, stop="13"), "stop"),
        (lambda run: replace(run, ema=0.5, keep=9), "ema"),
        (lambda run: replace(run, optimizer=Optimizer(lr=0.5)), "optimizer.lr"),
        (lambda run: replace(run, schedule=Schedule("cosine", warmup="5")), "schedule.shape, schedule.warmup"),
        (lambda run: with_data(run, step=((0.0, 2), (0.5, 4))), "data.step"),
        (lambda run: replace(run, objective=(MLM(rate=0.3), run.objective[1])), "objective.mlm.rate"),
        (lambda run: replace(run, objective=(MLM(),)), "objective.nsp"),
        (lambda run: replace(run, model=replace(run.model, encoder=replace(run.model.encoder, depth=3))), "model.encoder.depth"),
        (lambda run: replace(with_data(run, tokens=256, short=0.0), seed=1, stop="9"), "data.short, data.tokens, seed"),
    ],
)
def test_other_runs_are_told_by_their_fields(change: Callable[[Run], Run], names: str, shards: Path, tmp_path: Path) -> None:
    run = runs.small(shards)
    prepared(run, tmp_path / "run", Group())
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')  # it has made a step
    before = (tmp_path / "run" / "recipe.json").read_bytes()
    with pytest.raises(UserError) as said:
        prepared(change(run), tmp_path / "run", Group())
    assert f"run is the folder of another run ({names} differ); give --out another folder" in str(said.value)
    assert (tmp_path / "run" / "recipe.json").read_bytes() == before


def test_a_run_that_made_no_step_holds_no_folder(shards: Path, tmp_path: Path) -> None:
    """It was a mistake, mended since; and what cannot even be prepared leaves no folder."""
    run = runs.small(shards)
    with pytest.raises(UserError, match="holds no shards"):
        prepared(replace(run, data=replace(run.data, path=("nowhere",))), tmp_path / "run", Group())
    assert not (tmp_path / "run").exists()
    for seed in (1, 2):
        prepared(replace(run, seed=seed), tmp_path / "run", Group())
        assert json.loads((tmp_path / "run" / "recipe.json").read_text())["seed"] == seed


def test_only_the_runs_own_fields_may_change() -> None:
    """What a model or an optimizer calls by the same name is another thing."""
    one, other = ({"keep": value, "optimizer": {"keep": value, "lr": 1.0}, "data": {"path": ("a",)}} for value in (1, 2))
    assert _differences(one, other) == ["optimizer.keep"]
    assert _differences(one, json.loads(json.dumps(one))) == []


def test_a_recipe_that_was_half_written_is_none(shards: Path, tmp_path: Path) -> None:
    """The disk was full, or the run was killed, when it had barely begun: the same command goes on."""
    (tmp_path / ".recipe.json.new").write_text('{"model": {"fam')
    prepared(runs.small(shards), tmp_path, Group())
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]
    (tmp_path / "recipe.json").write_text('{"model": {"fam')
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    with pytest.raises(UserError, match=r"recipe.json is not JSON"):
        prepared(runs.small(shards), tmp_path, Group())


# ---- how it computes


def test_rows_are_as_wide_as_their_stage_of_the_run_needs(shards: Path) -> None:
    made = ready(with_data(runs.small(shards, layout="padded"), longest=((0.0, 16), (0.5, 48))))
    for share, width in ((0.0, 16), (0.6, 48), (0.0, 16)):
        _, block, number = next(made.stream(share).walk())
        batch = made.finish(block.make(number))
        assert batch.inputs["tokens"].shape[1] == width
        assert int(batch.layout.lengths.max()) <= width


def test_a_batch_is_laid_as_the_run_says(shards: Path) -> None:
    packed, laid = (step(ready(runs.small(shards, layout=layout))).parts[0][1] for layout in ("packed", "padded"))
    assert isinstance(packed.layout, Packed)
    assert isinstance(laid.layout, Padded)
    assert laid.inputs["tokens"].shape == (len(packed.layout.lengths), 48)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputing_gives_the_same_gradients(dropout: float, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, too, which must fall on the same places again."""
    run = runs.small(shards, model=runs.shape(dropout))
    one = gradients(run)
    calls: list[int] = []
    real = Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda self, *given: [calls.append(1), real(self, *given)][1])
    two = gradients(replace(run, recompute=True))
    assert len(calls) == 2 * 2 * 2, "each of two layers twice for each of two micro-batches"
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("dropout", "has"), [(0.0, False), (0.1, True)])
def test_it_knows_whether_there_is_dropout(dropout: float, has: bool, shards: Path) -> None:
    run = runs.small(shards, model=runs.shape(dropout))
    assert ready(run).dropout is has
    encoder = run.model.encoder
    assert isinstance(encoder, EncoderConfig)
    assert ready(replace(run, model=replace(runs.shape(), encoder=replace(encoder, dropout=0.0)))).dropout is has, "in attention alone"


def test_the_running_mean_is_what_is_saved(shards: Path) -> None:
    made = ready(runs.small(shards, ema=0.75))
    before = {name: p.detach().clone() for name, p in made.precision.masters.items()}
    for value in (1.0, 3.0):
        with torch.no_grad():
            for p in made.precision.masters.values():
                p.fill_(value)
        made.averaged()
    saved = {f"model.{name}": p for name, p in made.folder({}).model.named_parameters()}
    for name, p in before.items():
        assert torch.allclose(saved[name], (p * 0.75 + 0.25 * 1.0) * 0.75 + 0.25 * 3.0, atol=1e-6)
    assert not ready(runs.small(shards)).mean


@pytest.mark.parametrize("precision", ["float32", "bf16", "float64"])
def test_the_folder_is_the_model_in_float32(precision: str, shards: Path) -> None:
    made = ready(runs.small(shards, precision=precision))
    found = made.folder({"valid.loss": 1.5})
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}
    assert found.provenance["metrics"] == {"valid.loss": 1.5}
    assert found.provenance["recipe"] == made.run.json()
    weights = dict(found.model.named_parameters())
    assert all(torch.equal(weights[name.removeprefix("model.")].double(), p.detach().double()) for name, p in made.precision.masters.items())
    with torch.no_grad():
        for p in made.precision.masters.values():
            p.zero_()
    assert bool(weights["embed.words.weight"].any()), "what is learned later is not in it"


# ---- what is said of it


def test_the_entropy_is_that_of_single_pieces(shards: Path) -> None:
    found: Counter[int] = Counter()
    for file in json.loads((shards / "index.json").read_text())["shards"]:
        found.update(load_file(shards / file["file"])["tokens"][: file["tokens"][0]].tolist())
    total = sum(found.values())
    assert ready(runs.small(shards)).source.entropy() == pytest.approx(-sum(n / total * math.log(n / total) for n in found.values()), rel=1e-9)


def test_the_limit_is_of_all_ranks(shards: Path) -> None:
    one, four = ready(runs.small(shards)).limit, ready(runs.small(shards), Group(0, 4)).limit
    assert 1e9 < one < 1e13
    assert 1 < four / one < 16


@pytest.mark.parametrize(("tokens", "validation"), [(2_000, True), (0, False)])
def test_whether_it_is_evaluated(tokens: int, validation: bool, shards: Path) -> None:
    assert ready(runs.small(shards, evaluate_tokens=tokens)).validation is validation


def test_shards_without_validation_are_never_evaluated(shards: Path, tmp_path: Path) -> None:
    place = corpora.shards(tmp_path, Tokenizer.load(shards / "tokenizer"), runs.TEXTS[:30], validation=0.0)
    made = ready(runs.small(place))
    assert made.source.held == ()
    assert made.validation is False


def test_streams_differ_by_how_long_sequences_are(shards: Path) -> None:
    made = ready(with_data(runs.small(shards), longest=((0.0, 16), (0.5, 48))))
    assert made.stream(0.0) is made.stream(0.4)
    assert made.stream(0.5) is made.stream(1.0)
    longest = [int(next(made.stream(share).batches())[1].layout.lengths.max()) for share in (0.0, 0.5)]
    assert longest[0] <= 16 < longest[1] <= 48
    assert made.stream(1.0, fixed=True).corpora == made.source.held
    assert made.stream(1.0).corpora == made.source.corpora
    assert made.blocks == made.stream(0.0).blocks


# ---- compiled


@torch.library.custom_op("tests::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """In place of a GPU's kernel: no compiler looks into it."""
    return q + k + v


attend.register_fake(lambda q, k, v, bounds, longest: torch.empty_like(q, memory_format=torch.contiguous_format))
attend.register_autograd(lambda context, grad: (grad.clone(), grad.clone(), grad.clone(), None, None))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which the compiler asks for, and hides from people
@pytest.mark.parametrize("rates", [(0.15, 0.15), (0.3, 0.15)], ids=str)
def test_it_is_compiled_once(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: tuple[float, float]) -> None:
    """As on a GPU: other numbers of sequences, longer ones and fewer masks are no reason to compile again."""
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    plain = torch.compile

    def compiled(call: Any, **settings: Any) -> Any:
        return plain(call, backend=kept, **settings)

    monkeypatch.setattr(Prepared, "static", True)
    monkeypatch.setattr(Packed, "attend", lambda layout, q, k, v, reach, dropout: attend(q, k, v, layout.bounds, layout.longest))
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **settings: setattr(module, "forward", compiled(module.forward, **settings)))
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    run = runs.small(shards, objective=(MLM(*rates),), compile="yes", stop="30", evaluate="50%")
    loop.train(replace(run, data=replace(run.data, longest=((0.0, 24), (0.5, 48)))), tmp_path / "run")
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    # Embedding, layer and words; to learn, and to be judged; and the words for any number of masks, once that has moved.
    assert len(graphs) == 2 * 3 + (rates[0] != rates[1])
