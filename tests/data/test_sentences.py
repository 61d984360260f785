"""Where sentences end: each script by its own habits, and what holds for any text at all."""

from __future__ import annotations

import time
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as some

from unmask.data.sentences import sentences


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    "written",
    [  # a bar where a sentence ends
        "The cat sat. | It ran! | Did it? | Yes.",
        "Mr. Smith met Dr. Jones and Mrs. Brown on St. James Street. | They spoke.",
        "He saw J. K. Rowling and George W. Bush. | Then he left.",
        "It rose to 3.14 per cent. | See Fig. 3 and p. 12 of vol. 2. | Done.",
        "On Jan. 5 it began. | It ended in Jan. | Nobody knew.",
        "Use tools, e.g. Hammers or i.e. saws. | Fine.",
        "The U.S. Army won. | In the U.S. | The army lost.",
        "Foo Inc. and Bar Ltd. | They merged.",
        "She left... | Then nothing. | And so... he came.",
        "“Stop!” he said. | “Go.” | She went.",
        '"Why?" she asked. | "No reason." | He slept.',
        "(It was late.) | We left.",
        "1. The first thing. | It is long.",
        "He was 12. | The end.",
        "Rav (d. 247) taught in iii. 147 of it. | Yes.",
        "Wait . . . | The end .",
        "Read U.S.A. and node.JS and www.Example now. | Fine.",
        "¿Qué tal? | ¡Hola! | Él vino. | Ça va.",
        "Он пришёл. | Она ушла! он сказал.",
    ],
)
def test_scripts_with_spaces(written: str) -> None:
    assert cut(written.replace(" | ", " ")) == written.split(" | ")


def test_a_space_that_was_forgotten() -> None:
    assert cut("It was a term of abuse.Whilst it is used. Ask J.Smith.") == ["It was a term of abuse.", "Whilst it is used.", "Ask J.Smith."]


@pytest.mark.parametrize(
    "written",
    [
        "나는 갔다. |그는 왔다. |정말요? |네!",
        "그는 갔다.|그녀도 갔다.|끝났어요.|“정말?” 하고 물었다.",
        '"했다."고 말했다. |"좋아요." |그가 말했다.',
        "3.1운동은 1919년에 있었다. |원주율은 3.14이다.",
        "가.나.다 순으로 적는다. |끝.",
        "私は行く。|君も行くの？|はい！！|終わり",
        "「行く。」と言った。|「来た。」|彼は泣いた。",
        "他说：“你好。”|我走了。|真的吗？！|是。",
        "यह है। |वह था।",
    ],
)
def test_scripts_of_the_east(written: str) -> None:
    assert cut(written.replace("|", "")) == [one.strip() for one in written.split("|")]


def test_a_line_break_always_ends_one() -> None:
    assert cut("a line\nanother  \n\n  and Mr.\nSmith\r\n") == ["a line", "another", "and Mr.", "Smith"]


def test_nothing_is_no_sentence() -> None:
    for text in ("", " ", "\n", " \n\t\n "):
        assert sentences(text) == []
    assert cut("...") == ["..."]
    assert cut("  . ") == ["."]


PIECES = some.sampled_from([*"ab A.!?…。」\"')(\n\t 다요가は1", "Mr.", "U.S. ", "다.", "... ", "\u2028", "\xa0", "\r"])


@given(some.one_of(some.text(), some.lists(PIECES).map("".join)))
def test_nothing_but_whitespace_is_lost(text: str) -> None:
    spans = sentences(text)
    last = 0
    for start, end in spans:
        assert start < end
        assert text[last:start].strip() == "", "between two sentences stands only whitespace"
        assert text[start:end] == text[start:end].strip() != ""
        assert "\n" not in text[start:end]
        last = end
    assert text[last:].strip() == ""


def test_real_text() -> None:
    text = "\n".join(topics.values())
    found = cut(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert len(found) > 5_000


def test_it_is_fast() -> None:
    """30 MB/s and more on one core; half a megabyte a second would be a pattern that goes back over what it read."""
    hard = ["." * 200_000, "." * 100_000 + "a", '."' * 100_000, "다." * 100_000, " \n" * 100_000, "a. " * 100_000, "。」" * 100_000, ". " * 100_000 + "b"]
    start = time.process_time()
    for text in hard:
        sentences(text)
    assert time.process_time() - start < 3
