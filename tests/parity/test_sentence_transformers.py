"""Vectors against sentence-transformers: the real MiniLM, and made folders with everything a folder can ask of pooling."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

import unmask
from conftest import sentences
from models import PIECES, Case, make
from unmask.infer.predictor import Predictor

TYPES = {"Transformer": "sentence_transformers.models.Transformer", "Pooling": "sentence_transformers.models.Pooling"}
TYPES["Normalize"] = "sentence_transformers.models.Normalize"
LEGACY = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
PROMPTS = {"query": "find this: ", "passage": "Read, ", "none": ""}
TEXTS = [
    "",
    " ",
    "a",
    "the cat sat",
    "The CAT, sat!",
    "zebra quizzes jump over lazy dogs",
    "the dog ran. " * 12,
    "[MASK] and [SEP]",
    "한국어",
    *sentences(20, longest=12),
]


def of(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def theirs(model: SentenceTransformer, texts: list[str], **options: Any) -> np.ndarray[Any, Any]:
    return np.asarray(model.encode(texts, show_progress_bar=False, **options))


def same(ours: Predictor, model: SentenceTransformer, prompt: str | None = None, texts: list[str] = TEXTS) -> None:
    """Within 1e-5, in each number."""
    expected = theirs(model, texts, prompt_name=prompt)
    found = ours.embed(texts, prompt=prompt)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(expected).max() > 1e-2
    assert np.abs(found - expected).max() <= 1e-5


# ---- the real one

KOREAN = "나는 어제 고양이 강아지 학교에서 서울의 봄 날씨가 좋다 그리고 우리는 밥을 먹었다".split()
EMOJI = ["👍", "👩‍👩‍👧‍👦", "🏳️‍🌈 flags", "I ❤️ NY", "🇰🇷", "😀" * 40]


def real_texts() -> list[str]:
    """1,000: mostly short, in no order of length; some of what trips a loader."""
    draw = random.Random(0)
    korean = [" ".join(draw.choices(KOREAN, k=draw.randint(1, 12))) for _ in range(200)]
    odd = ["", " ", "\n\t  ", "word", "a", "[MASK]", "x" * 300, "don't — “quote” …", "é e\u0301", "\u200b", *EMOJI]
    long = [" ".join(draw.choices(KOREAN + "the cat sat on a mat".split(), k=k)) for k in (3_000, 400, 250, 200)]
    made = [*odd, *long, *korean, *sentences(1_000 - len(odd) - len(long) - len(korean), longest=18)]
    draw.shuffle(made)
    return made


@pytest.fixture(scope="module")
def real(minilm: Path) -> Predictor:
    return unmask.load(minilm)


@pytest.fixture(scope="module")
def vectors(real: Predictor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = real.embed(real_texts())
    return found


def test_minilm_is_theirs(vectors: np.ndarray[Any, Any], minilm: Path) -> None:
    texts = real_texts()
    assert len(texts) == 1_000
    expected = theirs(of(minilm), texts)
    worst = np.abs(vectors - expected).max(1)
    assert vectors.shape == (1_000, 384)
    assert worst.max() <= 1e-5, texts[int(worst.argmax())][:80]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5), "MiniLM's folder asks for vectors of length one"


def test_order_is_kept_and_company_does_not_matter(real: Predictor, vectors: np.ndarray[Any, Any]) -> None:
    """One at a time, the same vectors: of every odd text, and of some of the rest."""
    texts = real_texts()
    chosen = [i for i, text in enumerate(texts) if len(text.split()) < 2 or len(text) > 900] + list(range(0, 1_000, 25))
    for i in chosen:
        alone = real.embed(texts[i])
        assert alone.shape == (384,)
        assert np.abs(alone - vectors[i]).max() <= 1e-5, texts[i][:80]
    turned = real.embed(texts[100::-1])
    assert np.abs(turned[::-1] - vectors[:101]).max() <= 1e-5


def test_no_texts_are_no_vectors(real: Predictor) -> None:
    assert real.embed([]).shape == (0, 384)


def test_minilm_saved_is_still_theirs(real: Predictor, vectors: np.ndarray[Any, Any], tmp_path: Path) -> None:
    """Ours writes the folder after it has embedded; theirs loads it, in place of the one it came from."""
    texts, some = real_texts(), [0, 7, *range(100, 160)]
    long = max(range(1_000), key=lambda i: len(texts[i]))
    real.save(tmp_path / "saved")
    model = of(tmp_path / "saved")
    assert model.max_seq_length == 256
    assert np.abs(theirs(model, [texts[i] for i in (*some, long)]) - vectors[[*some, long]]).max() <= 1e-5
    assert np.array_equal(unmask.load(tmp_path / "saved").embed([texts[i] for i in some]), real.embed([texts[i] for i in some]))


# ---- made folders


def made(
    folder: Path,
    modes: tuple[str, ...],
    *,
    normalise: bool = False,
    form: str = "legacy",
    include_prompt: bool | None = None,
    prompt: str | None = None,
    settings: dict[str, Any] | None = None,
    pieces: list[str] = PIECES,
    **rules: Any,
) -> Path:
    """A small random BERT, and beside it the files in which sentence-transformers says what to do with its rows."""
    make(Case("bert", "BertModel", ()), folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    pooling: dict[str, Any] = {"word_embedding_dimension": 48}
    if form == "legacy":
        pooling |= {key: mode in modes for mode, key in LEGACY.items()}
    else:
        pooling |= {"pooling_mode": modes[0] if len(modes) == 1 else list(modes)}
    if include_prompt is not None:
        pooling["include_prompt"] = include_prompt
    files = {
        "modules.json": [{"idx": i, "name": str(i), "path": paths[i], "type": TYPES[kind]} for i, kind in enumerate(kinds)],
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": 40, "do_lower_case": False, **(settings or {})},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": prompt},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 64, **rules},
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    return folder


MODES = [
    *((mode,) for mode in LEGACY),
    ("cls", "mean"),
    ("max", "mean_sqrt_len_tokens", "weightedmean"),
    tuple(LEGACY),
]


@pytest.mark.parametrize("normalise", [False, True], ids=["as it is", "normalised"])
@pytest.mark.parametrize("form", ["legacy", "new"])
@pytest.mark.parametrize("modes", MODES, ids="+".join)
def test_pooling_and_saving(modes: tuple[str, ...], form: str, normalise: bool, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", modes, form=form, normalise=normalise)
    ours, model = unmask.load(folder), of(folder)
    same(ours, model)
    ours.save(tmp_path / "saved")
    again = of(tmp_path / "saved")
    assert np.array_equal(theirs(again, TEXTS), theirs(model, TEXTS)), "to them the folder means what it did"
    assert np.array_equal(unmask.load(tmp_path / "saved").embed(TEXTS), ours.embed(TEXTS))


def test_modes_in_an_order_of_their_own(tmp_path: Path) -> None:
    """The new form can say max before cls; the old one cannot, so a saved folder must say it in the new one."""
    folder = made(tmp_path / "made", ("max", "lasttoken", "cls"), form="new")
    ours = unmask.load(folder)
    same(ours, of(folder))
    ours.save(tmp_path / "saved")
    same(ours, of(tmp_path / "saved"))


@pytest.mark.parametrize("include", [None, True, False], ids=["unsaid", "with the prompt", "without the prompt"])
@pytest.mark.parametrize("modes", [*((mode,) for mode in LEGACY), ("cls", "max", "mean")], ids="+".join)
def test_prompts(modes: tuple[str, ...], include: bool | None, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", modes, include_prompt=include)
    ours, model = unmask.load(folder), of(folder)
    for prompt in ("query", "passage", "none", None):
        same(ours, model, prompt)
    assert np.abs(ours.embed(TEXTS, prompt="query") - ours.embed(TEXTS)).max() > 1e-2
    ours.save(tmp_path / "saved")
    same(ours, of(tmp_path / "saved"), "query")
    if modes == ("mean",) and include is False:
        with_prompt = unmask.load(made(tmp_path / "other", modes, include_prompt=True))
        assert np.abs(ours.embed(TEXTS, prompt="query") - with_prompt.embed(TEXTS, prompt="query")).max() > 1e-2


@pytest.mark.parametrize("include", [True, False])
def test_the_prompt_used_where_none_is_named(include: bool, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", ("mean",), include_prompt=include, prompt="passage")
    ours, model = unmask.load(folder), of(folder)
    same(ours, model)
    assert np.array_equal(ours.embed(TEXTS), ours.embed(TEXTS, prompt="passage"))
    ours.save(tmp_path / "saved")
    same(ours, of(tmp_path / "saved"))


def test_a_prompt_that_is_not_there(tmp_path: Path) -> None:
    ours = unmask.load(made(tmp_path / "made", ("mean",)))
    with pytest.raises(unmask.UserError, match="no prompt 'qury', did you mean query"):
        ours.embed("a", prompt="qury")


@pytest.mark.parametrize("length", [3, 7, 64])
def test_the_length_of_the_folder(length: int, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", ("mean",), settings={"max_seq_length": length})
    ours, model = unmask.load(folder), of(folder)
    assert ours.card.length == model.max_seq_length == length
    same(ours, model)


# Cased pieces beside the others, and Greek, whose last sigma is written otherwise.
CASED = [*PIECES, "T", "##H", "C", "σ", "##α", "##σ", "##ς"]


@pytest.mark.parametrize("text", ["THE CAT, The Dog", "the [MASK] SAT [SEP]", "ΣΑΣ σας"])
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_lowercasing_before_a_cased_tokenizer(lowercase: bool, include: bool, text: str, tmp_path: Path) -> None:
    """sentence_bert_config.json's do_lower_case stands before the tokenizer, but leaves its special pieces alone."""
    settings = {"do_lower_case": lowercase}
    folder = made(tmp_path / "made", ("mean",), include_prompt=include, settings=settings, pieces=CASED, do_lower_case=False)
    ours, model = unmask.load(folder), of(folder)
    for prompt in ("passage", None):
        same(ours, model, prompt, [text])


def test_a_bare_folder_is_the_mean_of_all_tokens(tmp_path: Path) -> None:
    make(Case("bert", "BertModel", ()), tmp_path)
    same(unmask.load(tmp_path), of(tmp_path))


@pytest.mark.parametrize("normalise", [False, True], ids=["as it is", "normalised"])
@pytest.mark.parametrize("modes", [("mean",), ("weightedmean", "cls")], ids="+".join)
def test_a_folder_that_they_saved(modes: tuple[str, ...], normalise: bool, tmp_path: Path) -> None:
    """The newest form is whatever the installed sentence-transformers writes."""
    modules = sentence_transformers.sentence_transformer.modules
    make(Case("bert", "BertModel", ()), tmp_path / "bare")
    trunk = modules.Transformer(str(tmp_path / "bare"), max_seq_length=30)
    parts = [trunk, modules.Pooling(48, pooling_mode=modes, include_prompt=False), *([modules.Normalize()] if normalise else [])]
    model = SentenceTransformer(modules=parts, device="cpu", prompts=PROMPTS, default_prompt_name="query")
    model.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    ours = unmask.load(tmp_path / "theirs")
    assert ours.card.length == 30
    for prompt in (None, "query", "passage"):
        same(ours, model, prompt)
    ours.save(tmp_path / "ours")
    same(ours, of(tmp_path / "ours"))


def test_an_old_folder_keeps_its_transformer_in_a_folder(minilm: Path, tmp_path: Path) -> None:
    """As sentence-transformers wrote them until 2021."""
    home, trunk = tmp_path / "old", tmp_path / "old" / "0_Transformer"
    shutil.copytree(minilm, trunk, ignore=shutil.ignore_patterns("1_Pooling", "modules.json", "config_sentence_transformers.json", "*.md"))
    shutil.copytree(minilm / "1_Pooling", home / "1_Pooling")
    modules = json.loads((minilm / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (home / "modules.json").write_text(json.dumps(modules))
    texts = sentences(20)
    expected = SentenceTransformer(str(home), device="cpu").encode(texts)
    model = unmask.load(home)
    assert model.card.length == 256
    assert np.abs(model.embed(texts) - expected).max() <= 1e-5
    model.save(tmp_path / "new")
    assert np.abs(SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(texts) - expected).max() <= 1e-5


@pytest.mark.parametrize("said", ["nothing", "config", "old config", "its own file"])
def test_a_reranker_scores_as_theirs_and_is_saved_as_one(said: str, tmp_path: Path) -> None:
    """A CrossEncoder: one logit, through a sigmoid, or as it is where the folder says so; each age says it in another place."""
    make(Case("bert", "BertForSequenceClassification", ("classify",), {"num_labels": 1}), tmp_path / "in")
    config, identity = json.loads((tmp_path / "in" / "config.json").read_text()), "torch.nn.modules.linear.Identity"
    config |= {"config": {"sentence_transformers": {"activation_fn": identity}}, "old config": {"sbert_ce_default_activation_function": identity}}.get(said, {})
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    if said == "its own file":
        sentence_transformers.CrossEncoder(str(tmp_path / "in"), device="cpu", activation_fn=torch.nn.Identity()).save(str(tmp_path / "theirs"))
        shutil.rmtree(tmp_path / "in")
        (tmp_path / "theirs").rename(tmp_path / "in")
    pairs = [("a cat", "a dog"), ("the mat", "c d e f g"), ("x", "y z")]
    unmask.load(tmp_path / "in").save(tmp_path / "out")
    for folder in ("in", "out"):
        expected = sentence_transformers.CrossEncoder(str(tmp_path / folder), device="cpu").predict(pairs)
        found = unmask.load(tmp_path / folder).classify(pairs)
        scores = [one.value if said != "nothing" else one.score for one in found]
        assert np.abs(np.array(scores) - expected).max() <= 1e-5
    assert transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.num_labels == 1


@pytest.mark.parametrize("name", ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"])
def test_the_file_of_an_old_transformer_module_has_its_name(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "in", ("mean",), settings={"max_seq_length": 6, "do_lower_case": True}, do_lower_case=False)
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{name}_config.json")
    texts = ["a b c d e f g h i j", "A B c"]
    model = unmask.load(folder)
    assert model.card.length == 6
    assert np.abs(model.embed(texts) - of(folder).encode(texts)).max() <= 1e-5


@pytest.mark.parametrize("name", ["dot", "euclidean", None])
def test_how_vectors_are_compared_is_kept(name: str | None, tmp_path: Path) -> None:
    folder = made(tmp_path / "in", ("mean",))
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarity_fn_name": name}))
    unmask.load(folder).save(tmp_path / "out")
    assert of(tmp_path / "out").similarity_fn_name == of(folder).similarity_fn_name == (name or "cosine")
