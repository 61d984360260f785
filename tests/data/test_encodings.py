"""The encoding of a file by its bytes: each that is known, and what is refused rather than guessed."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest

from unmask.data.encodings import binary, checked, detect, named, unmarked
from unmask.errors import UserError

KOREAN = "나는 오늘 고양이를 보았다. 그 고양이는 하얗고 아주 작았는데, 이름이 뽀삐라고 했다.\n우리는 함께 시장에 가서 생선을 샀어요. 믜쌰도 왔다.\n" * 20
FRENCH = "L'été dernier, nous étions à la plage. Où est passé le garçon? Il a mangé des crêpes.\n" * 20
GERMAN = "Die Straße führt über den Fluß; schöne Häuser stehen überall.\n" * 20
CHINESE = "我今天在街上看到了一只小猫，它的毛是白色的，非常可爱。我们一起去市场买了一些鱼。\n" * 20
JAPANESE = "今日は街で白い猫を見ました。とても小さくて可愛かったです。\n" * 20
RUSSIAN = "Сегодня я видел на улице белую кошку. Она была очень маленькая.\n" * 20


@pytest.mark.parametrize(
    ("text", "written", "found"),
    [
        (KOREAN, "utf-8", "utf-8"),
        (KOREAN, "utf-8-sig", "utf-8"),
        (KOREAN, "cp949", "cp949"),
        ("안녕하세요", "cp949", "cp949"),
        (KOREAN.replace("뽀삐", "나비").replace("믜쌰", "나"), "euc-kr", "cp949"),
        (KOREAN, "utf-16", "utf-16"),
        (KOREAN, "utf-16-le", "utf-16-le"),
        (KOREAN, "utf-16-be", "utf-16-be"),
        ("plain words\n", "utf-16-le", "utf-16-le"),
        ("plain words\n", "utf-16-be", "utf-16-be"),
        (CHINESE, "utf-16-le", "utf-16-le"),
        (KOREAN, "utf-32", "utf-32"),
        (FRENCH, "latin-1", "latin-1"),
        ("un café", "latin-1", "latin-1"),
        (GERMAN, "latin-1", "latin-1"),
        (FRENCH.replace("'", "’"), "cp1252", "cp1252"),
        (RUSSIAN, "utf-8", "utf-8"),
        ("plain", "ascii", "utf-8"),
        (CHINESE, "gb18030", ""),
        (CHINESE.replace("一只", "").replace("猫", ""), "big5", ""),
        (JAPANESE, "shift_jis", ""),
        (JAPANESE, "euc-jp", ""),
        (RUSSIAN, "cp1251", ""),
        (RUSSIAN, "koi8-r", ""),
        ("今日は街で白い猫を見ました。", "shift_jis", ""),
        ("お元気ですか？", "shift_jis", ""),
        ("日本語", "euc-jp", ""),
        ("你好，世界！", "gb18030", ""),
        ("北京是中国的首都。他说谢谢", "gb18030", ""),
        ("今天天氣很好。", "gb18030", ""),
        ("數據庫管理", "big5", ""),
        ("나는 오늘 고양이를 보았다.", "cp949", "cp949"),
        ("그 뽀삐는 작았는데", "cp949", "cp949"),
        ("한글", "cp949", "cp949"),
        ("“따옴표”를 썼다", "cp949", "cp949"),
        ("美 대통령이 오늘 회견을 했다", "cp949", "cp949"),
    ],
)
def test_found_by_bytes(text: str, written: str, found: str) -> None:
    data = text.encode(written, "ignore")
    assert detect(data, whole=True) == found
    if found and len(data) > 100:
        cut = len(data) // 2 + 1 & ~3 if "16" in written or "32" in written else len(data) // 2 + 1
        assert detect(data[:cut]) == found, "a character may be cut at the end of the head"


def test_the_middle_decides_where_the_head_is_ascii() -> None:
    assert detect(b"plain\n" * 100, KOREAN.encode("cp949")[1:]) == "cp949"
    assert detect(b"plain\n" * 100, FRENCH.encode("latin-1")) == "latin-1"
    assert detect(b"plain\n" * 100, KOREAN.encode()[1:]) == "utf-8"


def test_a_single_fault_does_not_make_it_another() -> None:
    """The reading then says where the fault is."""
    data = KOREAN.encode()
    assert detect(data[:500] + b"\xff" + data[500:]) == "utf-8"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"\xff\xd8\xff\xe0", "a JPEG picture"),
        (b"PK\x03\x04\x14", "a zip archive"),
        (b"%PDF-1.7", "a PDF"),
        (b"x" * 257 + b"ustar", "a tar archive"),
        (b"some\0bytes\0\0\0\0" + bytes(range(256)), "NUL bytes"),
        (b"\0" * 100, "NUL bytes"),
    ],
)
def test_what_is_no_text(head: bytes, what: str) -> None:
    assert what in binary(head)


def test_text_is_no_binary() -> None:
    for text in (KOREAN, FRENCH, "PK and Rar! and BZh and RIFF", ""):
        for encoding in ("utf-8", "utf-16", "utf-16-le", "utf-16-be"):
            assert binary(text.encode(encoding)) == ""
    assert binary("\n".join(topics.values()).encode()) == ""


def test_without_a_mark_the_order_of_bytes_must_be_named() -> None:
    for name in ("utf-16", "UTF16", "utf-16:replace"):
        assert unmarked(name, "가".encode("utf-16-le")) == "utf-16-le or utf-16-be"
        assert unmarked(name, "가".encode("utf-16")) == ""
    assert unmarked("utf-32", "가".encode("utf-32-be")) == "utf-32-le or utf-32-be"
    assert unmarked("utf-32", "가".encode("utf-32")) == ""
    assert unmarked("utf-16-le", b"a\0") == unmarked("utf-8", b"a") == ""


def test_names_as_typed() -> None:
    assert checked("UTF8") == "utf-8"
    assert checked("euc-kr") == "euc-kr"
    assert checked("utf-8:replace") == "utf-8:replace"
    assert named("utf-8:replace") == "UTF-8 with faults read as U+FFFD"
    for wrong, says in {
        "cp994": "did you mean cp949",
        "base64": "no encoding",
        "": "no encoding",
        "utf-8:ignore": "only :replace",
        "a\0b": "no encoding",
        "idna": "no encoding",
        "punycode:replace": "no encoding",
        "unicode_escape": "no encoding",
        "raw-unicode-escape": "no encoding",
    }.items():
        with pytest.raises(UserError, match=says):
            checked(wrong)
