"""New words: found, begun as the mean of their pieces, and nothing else moved; saved, they are the same to transformers."""

from __future__ import annotations

import json
import random
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rust
from torch import Tensor

import unmask
from models import CASES, PIECES, Case, make
from tokenizer.test_foreign import folder_of as foreign_folder
from tokenizer.test_foreign import lines
from tokenizer.test_wordpiece import ask, first_difference, hard
from unmask.errors import UserError
from unmask.model import store
from unmask.model.extend import extend
from unmask.model.layout import Packed
from unmask.model.store import Loaded
from unmask.tokenizer import Tokenizer

NEW = ["blockchain", "zorro", "전기차", "quux"]
HANGUL = [unicodedata.normalize("NFD", piece) for piece in ("전", "기", "##기", "##차", "##를", "##는", "차", "고", "##양", "##이")]  # as uncased BERT has it
MASKED = {case.id: case for case in CASES if "words" in case.heads and not case.architecture.endswith("PreTraining")}
KINDS = {"Roberta": "roberta", "XLMRoberta": "xlm-roberta", "Albert": "albert"}  # whose published models have another tokenizer than BERT's


def folder_of(case: Case, folder: Path, spare: int = 2) -> Path:
    """A model of that case with the tokenizer of its family, and some rows more than that has entries."""
    kind = KINDS.get(case.architecture.removesuffix("ForMaskedLM"))
    pieces = [*PIECES, *HANGUL]
    if kind is not None:
        settings = {"keep_accents": True} if kind == "albert" else {}  # without, transformers takes syllables apart
        pieces = [str(i) for i in range(Tokenizer.load(foreign_folder(kind, folder / "tok", **settings)).size)]
    make(case, folder, pieces=[*pieces, *(f"[unused{i}]" for i in range(max(80 - len(pieces), 0))), *(f"[spare{i}]" for i in range(spare))])
    if kind is not None:
        (folder / "vocab.txt").unlink()
        shutil.copytree(folder / "tok", folder, dirs_exist_ok=True)
        shutil.rmtree(folder / "tok")
    else:
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return folder


def rows_of(loaded: Loaded, texts: Sequence[str]) -> tuple[list[list[int]], Tensor]:
    """Their ids, and what the model makes of each, end to end."""
    assert loaded.tokenizer is not None
    ids = [one.ids for one in loaded.tokenizer.encode(texts, length=60)]
    layout = Packed.of([len(one) for one in ids])
    tokens = torch.tensor([number for one in ids for number in one])
    positions = torch.cat([torch.arange(len(one)) for one in ids])
    with torch.inference_mode():
        return ids, loaded.model({"tokens": tokens, "positions": positions}, layout)


def logits_of(loaded: Loaded, rows: Tensor) -> Tensor:
    with torch.inference_mode():
        return loaded.model.read("words", rows, Packed.of([len(rows)]))


def snapshot(loaded: Loaded) -> Any:
    """Everything that extend may change."""
    assert loaded.tokenizer is not None
    return loaded.tokenizer.files(), loaded.model.config, {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def same(one: Any, other: Any) -> bool:
    return one[:2] == other[:2] and one[2].keys() == other[2].keys() and all(torch.equal(tensor, other[2][name]) for name, tensor in one[2].items())


@pytest.fixture(params=MASKED.values(), ids=MASKED)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


OLD = ["the cat sat", "cat", "고양이", *(line for line in lines()[:2_000:40]), *hard(80, seed=11)]
WITH = [
    "a blockchain is zorro",
    "전기차를 기다렸다",
    "전기차는, 전기차.",
    "blockchain",
    "zorro quux zorro",
    "quux, zorro!",
    "the <mask> zorro",
    "the [MASK] blockchain!",
]


# ---- every family


def test_nothing_else_moves(case: Case, tmp_path: Path) -> None:
    """Texts without the new words: the same ids, the same rows of the encoder to the bit."""
    loaded = store.load(folder_of(case, tmp_path))
    old = [text for text in OLD if not any(word in text.lower() for word in NEW)]
    assert len(old) > 100
    ids, rows = rows_of(loaded, old)
    embedding = loaded.model.embed.words.weight.clone()
    assert extend(loaded, NEW) == NEW
    again, other = rows_of(loaded, old)
    assert ids == again
    assert torch.equal(rows, other)
    first = store.load(tmp_path).tokenizer.size  # type: ignore[union-attr]
    assert torch.equal(loaded.model.embed.words.weight[:first], embedding[:first])


def test_new_words_are_found_and_begin_as_their_pieces(case: Case, tmp_path: Path) -> None:
    before, loaded = store.load(folder_of(case, tmp_path)), store.load(tmp_path)
    assert extend(loaded, NEW) == NEW
    was, now = before.tokenizer, loaded.tokenizer
    assert was is not None
    assert now is not None
    byte_pairs = type(now.rust.model).__name__ == "BPE"
    for i, word in enumerate(NEW):
        pieces = was.rust.encode(f" {word}" if byte_pairs else word, add_special_tokens=False).ids
        pieces = [number for number in pieces if number != was.special("unk")] or list(range(was.size))
        assert now.rust.encode(word, add_special_tokens=False).ids == [was.size + i]
        for name in ("embed.words.weight", "heads.words.decoder.weight", "heads.words.decoder.bias"):
            new, old = loaded.model.state_dict()[name], before.model.state_dict()[name]
            assert torch.allclose(new[was.size + i], old[pieces].mean(0), atol=1e-6), (word, name)
    for text in WITH:
        assert len(now.encode([text])[0].ids) < len(was.encode([text])[0].ids) or byte_pairs, text
    found = now.encode(["a blockchain is zorro"])[0].ids
    assert {was.size, was.size + 1} <= set(found)
    assert now.decode(found[1:-1]).replace(" ", "") == "ablockchainiszorro"
    if not byte_pairs:
        assert was.size + 2 in now.encode(["전기차를 기다렸다"])[0].ids, "before a particle"


def test_every_size_agrees(case: Case, tmp_path: Path) -> None:
    loaded = store.load(folder_of(case, tmp_path, spare=3))
    old = loaded.model.config.embed.vocabulary
    assert extend(loaded, NEW) == NEW
    model, rows = loaded.model, max(old, loaded.tokenizer.size)  # type: ignore[union-attr]
    assert model.config.embed.vocabulary == model.embed.config.vocabulary == model.embed.words.num_embeddings == len(model.embed.words.weight) == rows
    assert dict(model.config.heads)["words"] == model.heads["words"].decoder.out_features == len(model.heads["words"].decoder.bias) == rows
    assert len(model.heads["words"].decoder.weight) == rows
    assert (model.heads["words"].decoder.weight is model.embed.words.weight) == model.config.tied
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_saved_it_is_the_same_here_and_in_transformers(case: Case, tmp_path: Path) -> None:
    loaded = store.load(folder_of(case, tmp_path / "theirs"))
    extend(loaded, NEW)
    texts = [text for text in [*OLD[:60], *WITH] if len(loaded.tokenizer.encode([text])[0].ids) < 60]  # type: ignore[union-attr]
    ids, rows = rows_of(loaded, texts)
    store.save(loaded, tmp_path / "ours")
    again = store.load(tmp_path / "ours")
    assert again.model.config == loaded.model.config
    found, same_rows = rows_of(again, texts)
    assert found == ids
    assert torch.equal(rows, same_rows)
    logits = logits_of(again, same_rows)
    assert torch.equal(logits, logits_of(loaded, rows))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    model, report = getattr(transformers, case.architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert model.config.vocab_size == len(logits[0])
    assert first_difference(texts, again.tokenizer.encode(texts, offsets=True), ask(tokenizer, texts)) is None  # type: ignore[union-attr]
    place = 0
    for text, one in zip(texts, ids, strict=True):
        with torch.inference_mode():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert (logits[place : place + len(one)] - expected).abs().max() < 1e-5, text
        place += len(one)


def test_what_is_refused_changes_nothing(case: Case, tmp_path: Path) -> None:
    """Good words before and after a bad one are not added either."""
    loaded = store.load(folder_of(case, tmp_path))
    before = snapshot(loaded)
    for word, said in {
        "two words": r"^the tokenizer cuts 'two words' at its spaces or marks before it looks anything up; give words without them$",
        " padded": r"the tokenizer cuts ' padded' at its spaces",
        "padded\n": r"the tokenizer cuts 'padded\\n' at its spaces",
        "mid,dle": r"the tokenizer cuts 'mid,dle'",
        "": r"nothing is left of the word '' once the tokenizer has cleaned it; leave it out$",
        " \t": r"nothing is left of the word ' \\t'",
        "half\ud83d": r"the word 'half\\ud83d' holds half of a character cut in two; repair the list it came from$",
    }.items():
        if word == "mid,dle" and case.architecture in ("XLMRobertaForMaskedLM", "AlbertForMaskedLM"):
            continue  # these tokenizers cut at spaces only
        with pytest.raises(UserError, match=said):
            extend(loaded, ["blockchain", word, "zorro"])
    assert same(before, snapshot(loaded))


def test_known_words_and_words_said_twice(case: Case, tmp_path: Path) -> None:
    loaded = store.load(folder_of(case, tmp_path))
    mask = loaded.tokenizer.roles["mask_token"]  # type: ignore[union-attr]
    before = snapshot(loaded)
    known = {"WordPiece": "전", "Unigram": "the", "BPE": "the"}[type(loaded.tokenizer.rust.model).__name__]  # type: ignore[union-attr]
    assert extend(loaded, []) == extend(loaded, [known]) == extend(loaded, [mask, known]) == []
    assert same(before, snapshot(loaded))
    assert extend(loaded, ["zorro", known, "quux", "zorro"]) == ["zorro", "quux"]
    after = snapshot(loaded)
    assert extend(loaded, ["quux", "zorro"]) == []
    assert same(after, snapshot(loaded))


def test_again_and_again_is_as_if_at_once(case: Case, tmp_path: Path) -> None:
    """Each batch of words after the last, in rows that were spare and in rows that are new."""
    folder_of(case, tmp_path)
    one, many = store.load(tmp_path), store.load(tmp_path)
    extend(one, NEW)
    for i, word in enumerate(NEW):
        assert extend(many, word if i else [word]) == [word], "one word needs no list"
    assert same(snapshot(one), snapshot(many))


def test_it_trains_on(case: Case, tmp_path: Path) -> None:
    """The new rows are weights like the others."""
    loaded = store.load(folder_of(case, tmp_path))
    extend(loaded, NEW)
    new = loaded.tokenizer.encode(["blockchain"])[0].ids  # type: ignore[union-attr]
    inputs = {"tokens": torch.tensor(new), "positions": torch.arange(len(new))}
    layout = Packed.of([len(new)])
    loaded.model.read("words", loaded.model(inputs, layout), layout).square().sum().backward()
    gradient = loaded.model.embed.words.weight.grad
    assert gradient is not None
    assert gradient.shape == loaded.model.embed.words.weight.shape
    assert gradient[new[1]].abs().sum() > 0


# ---- what some tokenizers alone do

BERT = Case("bert", "BertForMaskedLM", ("words",))
ROBERTA = Case("roberta", "RobertaForMaskedLM", ("words",))
ALBERT = Case("albert", "AlbertForMaskedLM", ("words",))


def test_casing_is_the_tokenizers(tmp_path: Path) -> None:
    loaded = store.load(folder_of(BERT, tmp_path / "uncased"))
    assert extend(loaded, ["BlockChain", "blockchain", "Zörro", "zorro"]) == ["BlockChain", "Zörro"]
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(["blockchain BLOCKCHAIN ZORRO"], offsets=True)[0].tokens[1:-1] == ["blockchain", "blockchain", "zorro"]


def test_unknown_pieces_count_for_nothing(tmp_path: Path) -> None:
    """Where a whole word was unknown, it begins as the mean of all that is known."""
    before, loaded = store.load(folder_of(BERT, tmp_path)), store.load(tmp_path)
    assert extend(loaded, ["쀍", "漢"]) == ["쀍", "漢"]
    size = before.tokenizer.size  # type: ignore[union-attr]
    expected = before.model.embed.words.weight[:size].mean(0)
    assert torch.allclose(loaded.model.embed.words.weight[size], expected, atol=1e-6)
    before, loaded = store.load(folder_of(ALBERT, tmp_path / "albert")), store.load(tmp_path / "albert")
    assert extend(loaded, ["the쀍s"]) == ["the쀍s"]
    size, pieces = before.tokenizer.size, before.tokenizer.encode(["the쀍s"])[0].ids[1:-1]  # type: ignore[union-attr]
    assert 1 in pieces
    expected = before.model.embed.words.weight[[number for number in pieces if number != 1]].mean(0)
    assert torch.allclose(loaded.model.embed.words.weight[size], expected, atol=1e-6)


def test_rows_that_no_piece_had_are_used_first(tmp_path: Path) -> None:
    loaded = store.load(folder_of(BERT, tmp_path, spare=0))
    size, rows = loaded.tokenizer.size, loaded.model.config.embed.vocabulary  # type: ignore[union-attr]
    assert (size, rows) == (70, 80)
    last = loaded.model.embed.words.weight[-1].clone()
    extend(loaded, NEW)
    assert loaded.model.config.embed.vocabulary == rows
    assert torch.equal(loaded.model.embed.words.weight[-1], last)
    extend(loaded, [f"quuxz{letter}" for letter in "abcdefghij"])
    assert loaded.model.config.embed.vocabulary == loaded.tokenizer.size == 84  # type: ignore[union-attr]


def test_words_longer_than_the_tokenizer_reads(tmp_path: Path) -> None:
    loaded = store.load(folder_of(BERT, tmp_path))
    with pytest.raises(UserError, match=r"the word 'zzzzzzzzzzzzzzzzzzzz'\.\.\. has 101 letters, and the tokenizer knows none of more than 100; leave it out"):
        extend(loaded, ["z" * 101])
    assert extend(loaded, ["z" * 100]) == ["z" * 100]
    assert len(loaded.tokenizer.encode(["z" * 100])[0].ids) == 3  # type: ignore[union-attr]


def test_a_space_belongs_to_a_word_of_byte_pairs(tmp_path: Path) -> None:
    """And it is whole where it stands alone, not in the middle of another."""
    loaded = store.load(folder_of(ROBERTA, tmp_path))
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    size = tokenizer.size
    extend(loaded, NEW)
    assert [tokenizer.piece(number) for number in tokenizer.encode(["in quux is"])[0].ids[-4:]] == ["in", "quux", "Ġis", "</s>"]
    assert size not in tokenizer.encode(["myblockchains"])[0].ids
    assert tokenizer.encode(["blockchain"])[0].ids == [0, size, 2]


def test_the_unknown_is_as_unlikely_as_before(tmp_path: Path) -> None:
    """Unigram scores it by the least likely piece: a long word may not become that."""
    tokenizer = store.load(folder_of(ALBERT, tmp_path)).tokenizer
    assert tokenizer is not None
    scores = [score for _, score in json.loads(tokenizer.rust.model.__getstate__())["vocab"]]
    tokenizer.add(["zqxzqxzqxzqxzqxzqxzqx"])
    after = [score for _, score in json.loads(tokenizer.rust.model.__getstate__())["vocab"]]
    assert after[:-1] == scores
    assert min(after) == min(scores)
    assert len(tokenizer.encode(["zqxzqxzqxzqxzqxzqxzqx"])[0].ids) == 3


ADDED: dict[str, Callable[[Rust], Any]] = {
    "words": lambda rust: rust.add_tokens([AddedToken("qwerty", normalized=False), AddedToken("uiop", single_word=True)]),
    "marks": lambda rust: rust.add_special_tokens(["[E1]", "[E2]"]),
}


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("case", [BERT, ALBERT, ROBERTA], ids=lambda case: case.family)
def test_behind_pieces_that_were_added_before(case: Case, add: Callable[[Rust], Any], tmp_path: Path) -> None:
    """A file numbers what was added after the vocabulary: were words put into that, the numbers of the rest would move at the next load."""
    tokenizer = Tokenizer.load(folder_of(case, tmp_path, spare=4))
    add(tokenizer.rust)
    for name, text in tokenizer.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    loaded = store.load(tmp_path)
    size, texts = loaded.tokenizer.size, ["qwerty uiop [E1]x[E2]", *OLD, *WITH]  # type: ignore[union-attr]
    ids, rows = rows_of(loaded, OLD)
    extend(loaded, NEW)
    again, other = rows_of(loaded, OLD)
    assert ids == again
    assert torch.equal(rows, other)
    found = [one.ids for one in loaded.tokenizer.encode(texts)]  # type: ignore[union-attr]
    assert set(range(size, size + len(NEW))) <= {number for one in found for number in one}
    store.save(loaded, tmp_path / "saved")
    assert [one.ids for one in store.load(tmp_path / "saved").tokenizer.encode(texts)] == found  # type: ignore[union-attr]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(texts)["input_ids"] == found


def test_numbers_with_gaps(tmp_path: Path) -> None:
    """Rust gives an added piece the number of how many there are, which another may have."""
    folder = folder_of(ROBERTA, tmp_path)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"<mask>": vocabulary["<mask>"] + 2}))
    loaded = store.load(folder)
    before = snapshot(loaded)
    with pytest.raises(UserError, match=r"numbers of the tokenizer belong to no piece, and new words would take them; save it anew"):
        extend(loaded, ["zorro"])
    assert same(before, snapshot(loaded))


def test_a_line_named_twice(tmp_path: Path) -> None:
    """A vocabulary with a number that no piece has: new words come after all of them."""
    folder = folder_of(BERT, tmp_path)
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("twice\ntwice\n")
    loaded = store.load(folder)
    size = loaded.tokenizer.size  # type: ignore[union-attr]
    extend(loaded, NEW)
    store.save(loaded, tmp_path / "saved")
    for found in (loaded, store.load(tmp_path / "saved")):
        assert found.tokenizer.encode(["zorro twice"])[0].ids[1:-1] == [size + 1, size - 1]  # type: ignore[union-attr]


def test_pictures_have_no_words(tmp_path: Path) -> None:
    make(Case("vit", "ViTModel", ()), tmp_path)
    with pytest.raises(UserError, match=r"a model of pictures has no vocabulary to add words to; load one that reads text"):
        extend(store.load(tmp_path), ["zorro"])


def test_half_precision_stays(tmp_path: Path) -> None:
    loaded = store.load(folder_of(BERT, tmp_path))
    loaded.model.to(torch.bfloat16)
    extend(loaded, NEW)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_a_model_without_a_word_head(tmp_path: Path) -> None:
    folder = folder_of(BERT, tmp_path / "masked")
    make(Case("bert", "BertModel", ()), tmp_path)
    shutil.copy(folder / "vocab.txt", tmp_path)
    loaded = store.load(tmp_path)
    assert extend(loaded, NEW) == NEW
    store.save(loaded, tmp_path / "saved")
    model = transformers.AutoModel.from_pretrained(tmp_path / "saved")
    assert model.config.vocab_size == len(model.embeddings.word_embeddings.weight) == loaded.model.config.embed.vocabulary


# ---- the real thing


def test_words_of_today_for_a_model_of_2020(minilm: Path, tmp_path: Path) -> None:
    words = ["코로나바이러스", "blockchain", "전기차"]
    old = ["a cat sleeps by the river", "the bank raised its rates", "고양이가 잔다", *random.Random(0).sample(lines(), 50)]
    new = [*words, "코로나바이러스가 퍼졌다", "전기차를 샀다", "a blockchain stores records"]
    model = unmask.load(minilm)
    before, was = model.embed(old), model.embed(new)
    counts = [len(one.ids) for one in model.tokenizer.encode(new)]  # type: ignore[union-attr]
    pieces = model.tokenizer.encode(["blockchain"])[0].ids[1:-1]  # type: ignore[union-attr]
    assert len(pieces) == 3
    assert extend(model.loaded, words) == words
    assert np.array_equal(model.embed(old), before)
    after = [len(one.ids) for one in model.tokenizer.encode(new)]  # type: ignore[union-attr]
    assert all(fewer < more for fewer, more in zip(after, counts, strict=True))
    assert after[:3] == [3, 3, 3]
    now = model.embed(new)
    assert ((now * was).sum(1) > [0.5, 0.5, 0.5, 0.65, 0.65, 0.65]).all(), "a mean says much of what its pieces said in their order"
    nearest = (now @ np.concatenate([was, before]).T).argmax(1)
    assert nearest[[1, 5]].tolist() == [1, 5], "of the words it can read at all, no other text is nearer"
    table = torch.nn.functional.normalize(model.loaded.model.embed.words.weight, dim=1)
    assert set((table @ table[30_523]).topk(3).indices.tolist()) < {30_523, *pieces}, "nothing is nearer than what it was made of"
    store.save(model.loaded, tmp_path / "saved")
    again = unmask.load(tmp_path / "saved")
    assert np.array_equal(again.embed(new), now)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(new)["input_ids"] == [one.ids for one in model.tokenizer.encode(new)]  # type: ignore[union-attr]
