"""What is hashed is compared with plain Python sets: words, shingles and runs of 13 words; and a sample with the whole."""

from __future__ import annotations

import math
import pydoc_data.topics
import random
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from unmask.data import duplicates
from unmask.data.duplicates import BLOCK, Copies, Likeness, Overlap, codes, exact, groups, signature

TOPICS = list(pydoc_data.topics.topics.values())
ENGLISH = sorted({word.lower() for text in TOPICS for word in text.split() if word.isalpha()})
KOREAN = [first + second for first in "가나다라마바사아자차카타파하고노도로모보" for second in "각간갈감갑강객건걸검것게견결경계공과관광"]
CHINESE = [chr(code) for code in range(0x4E00, 0x5200)]
DESK: list[tuple[list[str], str]] = [(ENGLISH, " "), (KOREAN, " "), (CHINESE, "")]
NAMES = ["English", "Korean", "Chinese"]


def hashes(text: str) -> list[int]:
    return duplicates.words(codes(text)).tolist()


def plain(text: str) -> list[str]:
    """Words as Python's own regular expressions see them."""
    return re.findall(r"[぀-ヿ㐀-鿿]|(?:(?![぀-ヿ㐀-鿿])[^\W_])+", text.lower())


def jaccard(one: Sequence[str], other: Sequence[str]) -> float:
    first, second = ({tuple(text[place : place + 3]) for place in range(len(text) - 2)} for text in (one, other))
    return len(first & second) / len(first | second)


def changed(draw: random.Random, text: Sequence[str], pool: Sequence[str], count: int) -> list[str]:
    """The same with so many of its words, anywhere, replaced."""
    other = list(text)
    for place in draw.sample(range(len(text)), count):
        other[place] = draw.choice(pool)
    return other


def alike(*texts: str) -> bool:
    return len(set(groups(np.stack([signature(duplicates.words(codes(text))) for text in texts])).tolist())) == 1


def chance(share: float) -> float:
    """That 52 of the 64 bins agree, which is 0.8 of them."""
    return sum(math.comb(64, count) * share**count * (1 - share) ** (64 - count) for count in range(52, 65))


# ---- words


def test_words_are_told_apart_as_python_tells_them() -> None:
    texts = [*TOPICS, "나는 학교에 갔다, 학교는 멀다.", "我去了學校。学校很远, 2024年!", "カタカナとひらがな", "naïve ÜBER über Straße_x 'quoted' don't"]
    known: dict[str, int] = {}
    for text in texts:
        found, expected = hashes(text), plain(text)
        assert len(found) == len(expected)
        for word, value in zip(expected, found, strict=True):
            assert known.setdefault(word, value) == value, word
    assert len(set(known.values())) == len(known) > 3_000


def test_case_is_set_aside() -> None:
    assert hashes("The CAT, Ünd ЖУК") == hashes("the cat ünd жук")
    assert hashes("cat") != hashes("act") != hashes("ca t")


def test_letters_beyond_the_first_plane_are_a_word_each() -> None:
    smile, ideograph = hashes("😀𠀀")
    assert smile != ideograph
    assert hashes("a😀b") == [*hashes("a"), smile, *hashes("b")]
    assert len(hashes("half \ud800 of a pair")) == 4


@pytest.mark.parametrize("text", ["", " \n", "?!—…"])
def test_no_words(text: str) -> None:
    assert hashes(text) == []
    assert Likeness().share() == Copies().share() == 0


@pytest.mark.parametrize("back", range(10))
def test_a_word_is_the_same_across_a_block(back: int) -> None:
    before = "filler " * (BLOCK // 7) + "x" * (BLOCK % 7)
    before = before[: BLOCK - 1 - back].rstrip()
    before += " " * (BLOCK - back - len(before))
    assert len(before) == BLOCK - back
    assert hashes(before + "Straddle 학교에서 猫白 end")[-5:] == hashes("straddle 학교에서 猫白 end")


def test_many_blocks_are_one_text() -> None:
    lines = [line for text in [*TOPICS, *TOPICS] for line in text.split("\n")]
    assert len("\n".join(lines)) > 2 * BLOCK
    assert hashes("\n".join(lines)) == [one for line in lines for one in hashes(line)]


def test_a_word_longer_than_a_block_is_no_endless_loop() -> None:
    assert 2 <= len(hashes("x" * (BLOCK * 2 + 5) + " end")) <= 4


# ---- near copies


@pytest.mark.parametrize(("pool", "between"), DESK, ids=NAMES)
def test_near_copies_are_found_as_often_as_their_likeness_says(pool: list[str], between: str) -> None:
    draw = random.Random(0)
    expected = spread = 0.0
    found = near = far = missed = 0
    for _ in range(350):
        text = draw.choices(pool, k=draw.randint(150, 400))
        other = changed(draw, text, pool, int(len(text) * draw.choice([0.01, 0.015, 0.03, 0.05, 0.07, 0.3])))
        share = jaccard(text, other)
        same = alike(between.join(text), between.join(other))
        expected, spread, found = expected + chance(share), spread + chance(share) * (1 - chance(share)), found + same
        near, missed = near + (share >= 0.9), missed + (share >= 0.9 and not same)
        far += share <= 0.5
        assert not (share <= 0.5 and same)
    assert near > 80
    assert far > 40
    assert missed <= 0.007 * near + 4 * math.sqrt(0.007 * near), "0.9 of them agree in 52 of 64 bins 993 times in 1,000"
    assert abs(found - expected) < 4 * math.sqrt(spread) + 1


def test_copies_in_other_case_and_punctuation_are_near() -> None:
    for text in TOPICS[:30]:
        assert alike(text, re.sub(r"\W+", " / ", text.upper().replace("_", " ")))
    assert not alike(TOPICS[0], TOPICS[1])


def test_short_texts_are_alike_only_when_they_are_the_same() -> None:
    draw = random.Random(0)
    for count in [1, 2, 3, 4, 5] * 60:
        text = draw.sample(ENGLISH, count + 1)
        assert alike(" ".join(text[1:]), " ".join(text[1:]).upper())
        assert not alike(" ".join(text[1:]), " ".join(text[:-1])), "half of the shingles at most"


def test_a_chain_of_near_copies_is_one_group() -> None:
    draw = random.Random(0)
    chain = [draw.choices(ENGLISH, k=400)]
    for _ in range(40):
        chain.append(changed(draw, chain[-1], ENGLISH, 2))
    assert jaccard(chain[0], chain[-1]) < 0.5
    others = [draw.choices(ENGLISH, k=400) for _ in range(30)]
    mixed = list(enumerate([*chain, *others]))
    draw.shuffle(mixed)
    found = groups(np.stack([signature(duplicates.words(codes(" ".join(text)))) for _, text in mixed])).tolist()
    homes = {number: home for (number, _), home in zip(mixed, found, strict=True)}
    assert len({homes[number] for number in range(len(chain))}) == 1
    assert len(set(found)) == 1 + len(others)


def test_the_share_of_near_copies_is_of_those_that_could_go() -> None:
    draw, likeness = random.Random(0), Likeness()
    texts = [draw.choices(ENGLISH, k=200) for _ in range(60)]
    for text in [*texts, *(changed(draw, text, ENGLISH, 1) for text in texts[:20]), texts[0], texts[0]]:
        likeness.add(duplicates.words(codes(" ".join(text))))
    assert likeness.share() == pytest.approx(22 / 82)
    assert not likeness.sampled


# ---- samples


def many(kind: Callable[[int], object], draw: random.Random, often: int) -> list[object]:
    """2,000 texts that stand once, 500 that stand twice, 250 four times, and one that stands `often`."""
    keys = [*range(2_000), *(number for number in range(2_000, 2_500) for _ in range(2)), *(number for number in range(2_500, 2_750) for _ in range(4))]
    keys += [9_999] * often
    draw.shuffle(keys)
    return [kind(key) for key in keys]


@pytest.mark.parametrize("often", [0, 1, 5_000, 50_000])
def test_exact_copies_are_counted_exactly_and_truly_in_a_sample(often: int) -> None:
    keys = [exact(str(number)) for number in many(lambda number: number, random.Random(0), often)]
    true = 1 - len(set(keys)) / len(keys)
    whole = Copies()
    for key in keys:
        whole.add(key)
    assert whole.share() == pytest.approx(true, abs=1e-12)
    assert whole.keys().tolist() == sorted(set(keys))
    for limit in (1_000, 2_000):
        sample = Copies(limit)
        for key in keys:
            sample.add(key)
            assert len(sample.kept) <= limit + 1
        assert sample.bound < 1 << 64
        assert sample.share() == pytest.approx(true, abs=0.08)


@pytest.mark.parametrize("text", range(8))
def test_one_text_again_and_again_is_all_copies(text: int) -> None:
    copies = Copies(100)
    for _ in range(1_000):
        copies.add(exact(str(text)))
    assert copies.share() == pytest.approx(0.999, abs=0.01)


def test_nothing_that_stands_once_is_a_copy_in_a_sample() -> None:
    copies = Copies(500)
    for number in range(20_000):
        copies.add(exact(str(number)))
    assert copies.share() == 0


@pytest.mark.parametrize("often", [0, 3_000])
def test_near_copies_in_a_sample(often: int) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(ENGLISH, k=draw.randint(5, 60))) for _ in range(10_000)]
    chosen = many(lambda number: texts[number], random.Random(0), often)
    sample = Likeness(700)
    for text in chosen:
        sample.add(duplicates.words(codes(str(text))))
        assert len(sample.kept) == len(sample.keys) <= 701
    assert sample.sampled
    assert sample.share() == pytest.approx(1 - len(set(chosen)) / len(chosen), abs=0.12)


def test_a_sample_favours_no_length() -> None:
    """Long texts have more shingles, and so a smaller one in every bin."""
    draw, sample = random.Random(0), Likeness(400)
    for _ in range(1_500):
        sample.add(duplicates.words(codes(" ".join(draw.choices(ENGLISH, k=15)))))
    for _ in range(500):
        long = duplicates.words(codes(" ".join(draw.choices(ENGLISH, k=1_000))))
        sample.add(long)
        sample.add(long)
    assert sample.share() == pytest.approx(0.2, abs=0.07)


# ---- two data sets


def runs(text: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(text[place : place + 13]) for place in range(max(1, len(text) - 12))] if text else []


def overlap(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]], limit: int = 16_000_000, between: str = " ") -> Overlap:
    made = Overlap(limit)
    for text in first:
        made.add(duplicates.words(codes(between.join(text))))
    for text in second:
        made.look_up(duplicates.words(codes(between.join(text))))
    return made


@pytest.mark.parametrize(("pool", "between"), DESK, ids=NAMES)
def test_shared_runs_are_those_of_plain_sets(pool: list[str], between: str) -> None:
    draw = random.Random(0)
    first = [draw.choices(pool, k=draw.randint(0, 80)) for _ in range(300)]
    first += [one[:40] for one in first[:20] if len(one) > 40]  # runs that stand in several
    second = [draw.choices(pool, k=100) for _ in range(100)]
    for text in first[::2]:
        cut = draw.randint(0, len(text))
        second.append([*draw.choices(pool, k=20), *text[cut:], *draw.choices(pool, k=20)] if draw.random() < 0.7 else text)
    known = {run for text in second for run in runs(text)}
    expected = [sum(run in known for run in runs(text)) / max(1, len(runs(text))) for text in first]
    found = overlap(first, second, between=between).shares().tolist()
    assert found == pytest.approx(expected)
    assert {0.0, 1.0} < set(expected), "all, nothing and something between"


def test_twelve_words_are_no_run() -> None:
    text = ENGLISH[:40]
    second = [[*ENGLISH[100:120], *text[10:22], *ENGLISH[200:220]]]
    assert overlap([text], second).shares().tolist() == [0]
    second[0][32] = text[22]
    assert overlap([text], second).shares().tolist() == [1 / 28]


def test_fewer_than_thirteen_words_count_as_a_whole() -> None:
    short = ENGLISH[:12]
    assert overlap([short], [short]).shares().tolist() == [1]
    assert overlap([short], [[*short, "more"]]).shares().tolist() == [0]
    assert overlap([short], [short[:11]]).shares().tolist() == [0]
    assert overlap([[], short], [[], ["?"]]).shares().tolist() == [0, 0]


def test_shares_of_a_sample_of_texts_are_true_for_short_and_long() -> None:
    draw = random.Random(0)
    short = [draw.choices(ENGLISH, k=8) for _ in range(6_000)]
    long = [draw.choices(ENGLISH, k=60) for _ in range(1_000)]
    made = overlap([*short, *long], [*short[:3_000], *long[:250]], limit=10_000)
    assert made.texts == 7_000
    assert made.held <= 10_000
    assert 500 < len(made.shares()) < 7_000
    assert (made.shares() == 1).mean() == pytest.approx(3_250 / 7_000, abs=0.07)
    assert (made.shares() > 0).mean() == (made.shares() == 1).mean()


@pytest.mark.parametrize("count", range(1, 9))
def test_of_texts_above_the_limit_one_is_kept(count: int) -> None:
    text = ENGLISH[:2_000]
    assert set(overlap([text] * count, [text], limit=100).shares().tolist()) == {1}
