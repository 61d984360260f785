"""The predictor: the same answers in any company, in order and lazily; what goes on inside; bad input told in a sentence."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import unmask
from conftest import WORDS, sentences
from models import THREE, Case, make, make_varied
from unmask.data.images import pixels
from unmask.errors import UserError
from unmask.infer.predictor import Predictor

ARCHITECTURES = {
    "fill": "BertForMaskedLM",
    "next": "BertForNextSentencePrediction",
    "classify": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
    "embed": "BertModel",
}
VIT = Case("vit", "ViTForImageClassification", ("classify",), THREE)


def loaded(task: str, folder: Path, vocabulary: list[str]) -> Predictor:
    settings = {"classify": THREE, "tagging": {"id2label": {0: "O", 1: "B-X", 2: "I-X"}}}.get(task, {})
    if task in ("fill", "embed"):
        make(Case("bert", ARCHITECTURES[task], (), settings), folder, pieces=vocabulary)
    else:
        make_varied(ARCHITECTURES[task], folder, vocabulary, **settings)
    return unmask.load(folder)


def inputs(task: str, count: int) -> list[Any]:
    """Every length from one word to twice what fits, some of them twice."""
    draw = random.Random(4)
    texts = [" ".join(draw.choices(WORDS, k=draw.choice([1, 2, 3, 10, 30, 62, 63, 120]))) for _ in range(count)]
    if task == "fill":
        return [f"[MASK] {text} [MASK]" if len(text) < 100 else f"the [MASK] {text}" for text in texts]
    if task in ("next", "spans"):
        return [(" ".join(text.split()[:20]), other) for text, other in zip(texts, reversed(texts), strict=True)]
    if task == "classify":
        return [(text, texts[0]) if i % 3 == 0 else text for i, text in enumerate(texts)]
    return texts


def same(one: Any, two: Any) -> bool:
    """Numbers within 1e-5, all else equal."""
    if isinstance(one, np.ndarray):
        return one.shape == two.shape and bool(np.abs(one - two).max() <= 1e-5)
    if isinstance(one, float):
        return abs(one - two) <= 1e-5
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(map(same, one.values(), two.values()))
    return bool(one == two) if isinstance(one, str | int | bool) else same(one.json(), two.json())


# ---- many at once


@pytest.mark.parametrize("task", ARCHITECTURES)
def test_answers_are_those_of_one_at_a_time(task: str, tmp_path: Path, vocabulary: list[str]) -> None:
    model = loaded(task, tmp_path, vocabulary)
    given = inputs(task, 60)
    alone = [model.ask(task, one) for one in given]
    together = model.ask(task, given)
    assert all(map(same, alone, together))
    order = random.Random(0).sample(range(60), 60)
    mixed = model.ask(task, [given[i] for i in order])
    assert all(same(mixed[place], alone[i]) for place, i in enumerate(order))
    assert not all(same(alone[0], one) for one in alone), "answers that tell nothing apart"


@pytest.mark.parametrize("task", ["embed", "tagging"])
def test_more_than_a_chunk_with_many_alike(task: str, tmp_path: Path, vocabulary: list[str]) -> None:
    model = loaded(task, tmp_path, vocabulary)
    distinct = sentences(50, longest=30, seed=1)
    alone = {text: model.ask(task, text) for text in distinct}
    many = random.Random(2).choices(distinct, k=3_000)
    assert len(many) > model.chunk
    found = model.ask(task, many)
    assert len(found) == 3_000
    assert all(same(answer, alone[text]) for text, answer in zip(many, found, strict=True))


@pytest.mark.parametrize("task", ARCHITECTURES)
def test_nothing_gives_nothing(task: str, tmp_path: Path, vocabulary: list[str]) -> None:
    model = loaded(task, tmp_path, vocabulary)
    assert model.ask(task, []) == []
    assert model.ask(task, iter(())) == []
    if task == "embed":
        assert model.embed([]).shape == (0, 48)


def test_a_stream_takes_what_it_needs(tmp_path: Path, vocabulary: list[str]) -> None:
    """Ten answers of an endless generator: a chunk is read only when the one before is used up."""
    loaded("embed", tmp_path, vocabulary)
    model = unmask.load(tmp_path, device="cpu")  # a GPU has the next chunk cut while it computes
    model.chunk = 64
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for text in itertools.cycle(sentences(7, longest=3)):
            taken += 1
            yield text

    answers = model.stream("embed", endless())
    assert taken == 0
    first = list(itertools.islice(answers, 10))
    assert taken == 1 + 4 + 16
    list(itertools.islice(answers, 75))
    assert taken == 1 + 4 + 16 + 64
    assert next(answers) is not None
    assert taken == 1 + 4 + 16 + 64 + 64
    assert same(first[0], first[7])


def test_one_or_a_list(tmp_path: Path, vocabulary: list[str]) -> None:
    model = loaded("classify", tmp_path, vocabulary)
    one = model.classify("the cat")
    for many in (["the cat"], ("the cat",), iter(["the cat"]), {"the cat": 1}.keys(), np.array(["the cat"])):
        assert same(model.classify(many)[0], one)
    pair = model.classify(("the cat", "a dog"))
    assert not isinstance(pair, list)
    assert same(model.classify([("the cat", "a dog")])[0], pair)
    assert same(next(model.stream("classify", "the cat")), one), "a text is one input, not its letters"


def test_the_task_a_folder_is_for(tmp_path: Path, vocabulary: list[str]) -> None:
    for task in ARCHITECTURES:
        model = loaded(task, tmp_path, vocabulary)
        if task == "embed":
            with pytest.raises(UserError, match="use embed"):
                _ = model.task
        else:
            assert model.task == task
    (tmp_path / "task.json").write_text('{"task": "embed"}')
    assert unmask.load(tmp_path).task == "embed"


# ---- inside


GIVEN = ["the cat sat", "x", ("who", "the cat sat on a mat"), " ".join(WORDS * 4), ""]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, vocabulary: list[str]) -> tuple[Any, Any, Predictor]:
    """transformers' model (with eager attention) and tokenizer, and ours of the same folder."""
    folder = tmp_path_factory.mktemp("bert")
    theirs: Any = make(Case("bert", "BertModel", ()), folder, pieces=vocabulary)
    theirs.set_attn_implementation("eager")
    return theirs, transformers.AutoTokenizer.from_pretrained(folder), unmask.load(folder)


@pytest.mark.parametrize("given", GIVEN, ids=["text", "word", "pair", "too long", "empty"])
@torch.inference_mode()
def test_hidden_states_and_attention_are_theirs(reference: tuple[Any, Any, Predictor], given: Any) -> None:
    theirs, tokenizer, model = reference
    encoded = tokenizer(*((given,) if isinstance(given, str) else given), return_tensors="pt", truncation=True, max_length=64)
    out = theirs(**encoded, output_hidden_states=True, output_attentions=True)
    pieces = tuple(tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]))

    every = model.hidden(given, layer=[0, 1, 2, 3])
    assert every.pieces == pieces
    assert every.vectors.shape == (4, len(pieces), 48)
    for layer, expected in enumerate(out.hidden_states):
        assert np.abs(every.vectors[layer] - expected[0].numpy()).max() <= 1e-5
        for number in (layer, layer - 4):  # from either end
            assert np.array_equal(model.hidden(given, layer=number).vectors, every.vectors[layer])
    assert np.array_equal(model.hidden(given).vectors, every.vectors[-1])
    assert np.array_equal(model.hidden(given, layer=(3, -4)).vectors, every.vectors[[3, 0]])
    text = given if isinstance(given, str) else given[1]
    assert len(every.offsets) == len(pieces)
    assert all(0 <= start <= end <= max(len(text), 3) for start, end in every.offsets)

    maps = model.attention(given)
    assert maps.pieces == pieces
    assert maps.weights.shape == (3, 4, len(pieces), len(pieces))
    assert np.abs(maps.weights - torch.stack(out.attentions)[:, 0].numpy()).max() <= 1e-6


def test_hidden_of_many(reference: tuple[Any, Any, Predictor]) -> None:
    _, _, model = reference
    for one, given in zip(model.hidden(GIVEN), GIVEN, strict=True):
        assert np.abs(one.vectors - model.hidden(given).vectors).max() <= 1e-5
    assert model.hidden([]) == []


@pytest.mark.parametrize("layer", [4, -5, [0, 4], "3", 1.5, []])
def test_a_layer_that_is_not_there(reference: tuple[Any, Any, Predictor], layer: Any) -> None:
    with pytest.raises(UserError, match=r"this model has layers 0 .*to 3"):
        reference[2].hidden("the cat", layer=layer)


# ---- pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """PNGs of several sizes and modes, more than one batch of them."""
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(20)]
    for i, path in enumerate(paths):
        shape = (20 + 3 * i, 60 - 2 * i, 3) if i % 4 else (32, 32)
        Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return paths


@torch.inference_mode()
def test_pictures_are_classified_as_theirs(tmp_path: Path, pictures: list[Path]) -> None:
    theirs: Any = make(VIT, tmp_path)
    model = unmask.load(tmp_path)
    assert model.card.image is not None
    found = model.classify(pictures)
    for path, ours in zip(pictures, found, strict=True):
        expected = theirs(pixels(path, model.card.image)[None]).logits[0].softmax(-1)
        assert ours.scores == pytest.approx({theirs.config.id2label[i]: p for i, p in enumerate(expected.tolist())}, abs=1e-5)
    assert same(model.classify(pictures[0]), found[0])
    assert same(model.classify(str(pictures[0])), found[0])
    assert same(model.classify(Image.open(pictures[0])), found[0])
    assert all(map(same, model.classify([Image.open(path) for path in pictures]), found))
    assert not same(found[0], found[1])


@torch.inference_mode()
def test_inside_of_pictures(tmp_path: Path, pictures: list[Path]) -> None:
    theirs: Any = make(Case("vit", "ViTModel", ()), tmp_path)
    theirs.set_attn_implementation("eager")
    model = unmask.load(tmp_path)
    assert model.card.image is not None
    out = theirs(pixels(pictures[1], model.card.image)[None], output_hidden_states=True, output_attentions=True)
    maps, hidden = model.attention(pictures[1]), model.hidden(pictures[1], layer=[0, 1, 2, 3])
    assert np.abs(maps.weights - torch.stack(out.attentions)[:, 0].numpy()).max() <= 1e-6
    for layer in range(3):
        assert np.abs(hidden.vectors[layer] - out.hidden_states[layer][0].numpy()).max() <= 1e-5
    assert np.abs(hidden.vectors[3] - out.last_hidden_state[0].numpy()).max() <= 1e-5
    assert maps.pieces == hidden.pieces == ("[CLS]", *(f"{row},{column}" for row in range(4) for column in range(4)))
    assert np.abs(model.embed(pictures[1]) - out.last_hidden_state[0, 0].numpy()).max() <= 1e-5
    assert model.embed(pictures).shape == (20, 48)


# ---- what is no input


@pytest.mark.parametrize("wrong", [None, 5, 1.5, b"bytes", object(), {"text": "x"}], ids=lambda one: type(one).__name__)
def test_wrong_types_are_told(reference: tuple[Any, Any, Predictor], tmp_path: Path, wrong: Any) -> None:
    make(VIT, tmp_path)
    for model in (reference[2], unmask.load(tmp_path)):
        for ask in (model.embed, model.hidden):
            with pytest.raises(UserError, match=rf"of type {type(wrong).__name__}; give a text"):
                ask(wrong)
            with pytest.raises(UserError, match=rf"^input 2 is of type {type(wrong).__name__}; .* is asked for$"):
                ask(["the cat" if model.tokenizer else Image.new("RGB", (8, 8)), wrong])
        with pytest.raises(UserError, match=rf"^input 1 is of type {type(wrong).__name__}; .* is asked for$"):
            model.attention(wrong)


@pytest.mark.parametrize(
    ("task", "given", "said"),
    [
        ("classify", [["a", "b"]], "input 1 is of type list; a text or a pair of texts (a tuple) is asked for"),
        ("classify", [("a", "b", "c")], "input 1 is of type tuple; a text or a pair of texts (a tuple) is asked for"),
        ("classify", [Path("cat.jpg")], "input 1 is a path; a text or a pair of texts (a tuple) is asked for"),
        ("embed", [("a", "b")], "input 1 is a pair of texts; a text is asked for"),
        ("tagging", ["a", ("a", "b")], "input 2 is a pair of texts; a text is asked for"),
        ("next", ["a"], "input 1 is a text; a pair of texts (a tuple) is asked for"),
        ("spans", [("a", "b"), ("a", None)], "input 2 is of type tuple; a pair of texts (a tuple) is asked for"),
        ("embed", ["a"] * 2_500 + [None], "input 2501 is of type NoneType; a text is asked for"),
    ],
)
def test_a_wrong_input_is_named(tmp_path: Path, vocabulary: list[str], task: str, given: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        loaded(task, tmp_path, vocabulary).ask(task, given)
    assert str(caught.value) == said


def test_pictures_that_are_none(tmp_path: Path, pictures: list[Path]) -> None:
    make(VIT, tmp_path)
    model = unmask.load(tmp_path)
    with pytest.raises(UserError, match=r"^there is no picture .*missing\.png$"):
        model.classify([pictures[0], tmp_path / "missing.png"])
    with pytest.raises(UserError, match="input 1 is a pair of texts; a picture or its path is asked for"):
        model.classify(("a", "b"))
    with pytest.raises(UserError, match="has no head 'words', which fill needs; it has classify"):
        model.fill("a [MASK]")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"put a preprocessor_config\.json beside config\.json"):
        unmask.load(tmp_path).classify(pictures[0])


def test_what_the_folder_cannot_answer(reference: tuple[Any, Any, Predictor]) -> None:
    with pytest.raises(UserError, match=r"^this model has no head 'words', which fill needs; it has none"):
        reference[2].fill("a [MASK]")
    with pytest.raises(UserError, match=r"'tagging2', did you mean tagging\?"):
        reference[2].ask("tagging2", "x")
    with pytest.raises(UserError, match=r"^embed has no option 'promt', did you mean prompt\?"):
        reference[2].ask("embed", "x", promt="query")
    with pytest.raises(UserError, match=r"^classify has no options; leave top out$"):
        reference[2].ask("classify", "x", top=2)


# ---- precision and device


def test_bf16_is_close_to_float32(minilm: Path) -> None:
    texts = [*sentences(40, longest=60), "A cat sleeps by the window.", "서울"]
    exact, near = unmask.load(minilm).embed(texts), unmask.load(minilm, precision="bf16").embed(texts)
    assert near.dtype == np.float32
    assert (exact * near).sum(-1).min() > 0.999
    assert np.abs(exact - near).max() > 1e-6, "it computed in float32"


def test_bf16_answers_with_every_head(tmp_path: Path, vocabulary: list[str]) -> None:
    for task in ARCHITECTURES:
        loaded(task, tmp_path, vocabulary)
        assert len(unmask.load(tmp_path, precision="bf16").ask(task, inputs(task, 5))) == 5
    make(VIT, tmp_path / "vit")
    found = unmask.load(tmp_path / "vit", precision="bf16").classify(Image.new("RGB", (8, 8)))
    assert found.scores == pytest.approx(unmask.load(tmp_path / "vit").classify(Image.new("RGB", (8, 8))).scores, abs=0.05)


def test_precision_and_device_have_names(tmp_path: Path) -> None:
    make(Case("bert", "BertModel", ()), tmp_path)
    assert unmask.load(tmp_path).precision == "float32"
    assert unmask.load(tmp_path, precision="auto").precision in ("float32", "bf16")
    with pytest.raises(UserError, match=r"^precision 'fp16' is not known; it is float32, bf16 or auto$"):
        unmask.load(tmp_path, precision="fp16")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(UserError, match=rf"^there is no device '{name}' here; leave it out"):
            unmask.load(tmp_path, device=name)


def test_saving_from_bf16_is_refused(tmp_path: Path) -> None:
    make(Case("bert", "BertModel", ()), tmp_path / "in")
    with pytest.raises(UserError, match="load it with precision='float32' to save it"):
        unmask.load(tmp_path / "in", precision="bf16").save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    unmask.load(tmp_path / "in").save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


# ---- what a GPU does, done here


def test_cutting_ahead_changes_nothing(tmp_path: Path, vocabulary: list[str]) -> None:
    """On a GPU the next texts are cut in a thread while these are computed, in larger chunks and batches."""
    for task in ("embed", "tagging"):
        model = loaded(task, tmp_path, vocabulary)
        texts = sentences(300, longest=30, seed=3)
        plain = model.ask(task, texts)
        model.overlap, model.budget, model.chunk = True, 65_536, 100
        assert all(same(one, two) for one, two in zip(model.ask(task, iter(texts)), plain, strict=True))
        with pytest.raises(UserError, match="input 250 is of type int"):
            list(model.stream(task, [*texts[:249], 7]))


def test_the_first_of_a_slow_stream_is_answered_at_once(tmp_path: Path, vocabulary: list[str]) -> None:
    model, taken = loaded("embed", tmp_path, vocabulary), 0

    def slow() -> Iterator[str]:
        nonlocal taken
        for text in sentences(100):
            taken += 1
            yield text

    answers = model.stream("embed", slow())
    next(answers)
    assert taken == 1
    next(answers)
    assert taken == 5


@torch.inference_mode()
def test_a_pair_without_segments(tmp_path: Path) -> None:
    """Korean RoBERTas have BERT's tokenizer, which gives segments, and know of one: both texts are read as the first."""
    theirs: Any = make(Case("roberta", "RobertaForSequenceClassification", ("classify",)), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    found = unmask.load(tmp_path).classify(("a b", "c"))
    expected = theirs(torch.tensor([[2, 5, 6, 3, 7, 3]])).logits[0].softmax(-1)
    assert [found.scores[f"LABEL_{i}"] for i in range(2)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_folder_whose_head_no_task_reads_says_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.infer.predictor.tasks", dict)
    make(Case("bert", "BertForMultipleChoice", ("choice",)), tmp_path)
    with pytest.raises(UserError, match="only choice, which no task reads yet"):
        _ = unmask.load(tmp_path).task


def test_memory_does_not_grow_with_the_number_of_texts(minilm: Path, full: bool) -> None:
    """oneDNN keeps a plan for every number of rows: with batches of any number of tokens this grew by hundreds of megabytes."""
    code = """
import random, sys, torch, unmask
from dataclasses import replace
from pathlib import Path
from unmask.infer.predictor import Predictor
from unmask.model import families, store
from unmask.model.card import Card
from unmask.tokenizer import Tokenizer
torch.set_num_threads(1)
shape = families.shape("bert.tiny")
model = families.new(replace(shape, encoder=replace(shape.encoder, width=64, heads=2, hidden=128))).eval()
tokenizer = Tokenizer.load(Path(sys.argv[1]))
model = Predictor(store.Loaded(model, Card(length=64), tokenizer, {}, {}), precision=sys.argv[3], device="cpu")
draw = random.Random(0)
def used():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20
for i, _ in enumerate(model.stream("embed", ("cat " * draw.randint(1, 12) for _ in range(2048 * int(sys.argv[2]))))):
    if i == 2048 * (int(sys.argv[2]) // 4):  # by then the few plans are made
        before = used()
print(used() - before)
"""
    for precision in ("float32", "bf16"):
        done = subprocess.run([sys.executable, "-c", code, str(minilm), "300" if full else "40", precision], capture_output=True, text=True, check=True)
        assert int(done.stdout) < 40, f"megabytes, in {precision}"


def test_new_words_are_read_whole(tmp_path: Path, vocabulary: list[str]) -> None:
    make(Case("bert", "BertForMaskedLM", ("words",)), tmp_path / "old", pieces=vocabulary)
    model = unmask.load(tmp_path / "old")
    before = model.hidden("a cat sat").vectors
    assert model.extend(["blockchain", "cat"]) == ["blockchain"]
    assert model.hidden("blockchain").pieces == ("[CLS]", "blockchain", "[SEP]")
    assert np.array_equal(model.hidden("a cat sat").vectors, before)
    model.save(tmp_path / "new")
    again = unmask.load(tmp_path / "new")
    assert same(again.fill("the blockchain [MASK]"), model.fill("the blockchain [MASK]"))
    make(VIT, tmp_path / "pictures")
    pictures = unmask.load(tmp_path / "pictures")
    with pytest.raises(UserError, match="a model of pictures has no vocabulary"):
        pictures.extend(["word"])


def test_heads_may_be_asked_for_where_it_is_loaded(tmp_path: Path) -> None:
    """The sentence that refuses a folder says to."""
    make(Case("bert", "BertModel", ()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["BertForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"load it with heads=\{'classify': number of labels\}"):
        unmask.load(tmp_path)
    model = unmask.load(tmp_path, heads={"classify": 2})
    assert model.classify("a b").label in ("LABEL_0", "LABEL_1")


def test_a_layer_may_be_a_number_of_numpys(tmp_path: Path) -> None:
    make(Case("bert", "BertModel", ()), tmp_path)
    model = unmask.load(tmp_path)
    assert np.array_equal(model.hidden("a b", layer=np.int64(1)).vectors, model.hidden("a b", layer=1).vectors)  # type: ignore[arg-type]
    assert model.hidden("a b", layer=np.arange(2)).vectors.shape == (2, 4, 48)  # type: ignore[arg-type]
