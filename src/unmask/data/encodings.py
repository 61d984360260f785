"""Which encoding the bytes of a file are in, by rule, from its head and its middle; and which files are no text at all."""

from __future__ import annotations

import codecs
import re

from unmask.errors import UserError, near

MARKS = (  # UTF-32 first: its mark begins with UTF-16's
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
NAMES = {
    "utf-8": "UTF-8",
    "cp949": "CP949 (EUC-KR is part of it)",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16 (little-endian)",
    "utf-16-be": "UTF-16 (big-endian)",
    "utf-32": "UTF-32",
    "latin-1": "Latin-1",
    "cp1252": "Latin-1 (as Windows has it, CP1252)",
}
UNMARKED = {"utf-16": ((b"\xff\xfe", b"\xfe\xff"), "utf-16-le or utf-16-be"), "utf-32": ((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "utf-32-le or utf-32-be")}
NO_CHARSETS = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")  # Python takes them for text encodings
OFTEN = "utf-8 cp949 euc-kr johab utf-16 latin-1 cp1252 shift_jis euc-jp gb18030 big5 cp1251 koi8-r".split()
MAGIC = (  # only beginnings that no text has
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF87a", "a GIF picture"),
    (b"GIF89a", "a GIF picture"),
    (b"PK\x03\x04", "a zip archive (or a document of an office program)"),
    (b"PK\x05\x06", "a zip archive"),
    (b"%PDF-", "a PDF"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"BZh91AY&SY", "a bzip2 file"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"ARROW1\0", "an Arrow file"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"\x93NUMPY", "a NumPy array"),
)
# The commonest syllables: about half of any Korean text, some 3% of Chinese that is misread as CP949.
SYLLABLES = re.compile("[이다는의에가을를은고하지도어나기로서사아리자한있들게인시해대그라일수보정부여스요만면니]")
HANGUL = re.compile("[가-힣]")
HAN = re.compile("[\u4e00-\u9fff\uf900-\ufaff]")
BEYOND = re.compile("[^\0-\x7f]")
BESIDE = re.compile(rb"(?<=[A-Za-z])[\x80-\xff]|[\x80-\xff](?=[A-Za-z])")
HIGH = bytes(range(0x80, 0x100))
ENOUGH = 200_000  # characters; more do not change a share


def binary(head: bytes) -> str:
    """What kind of binary file begins so, in words; "" where it may be text."""
    for beginning, name in MAGIC:
        if head.startswith(beginning):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    if b"\0" in head and not detect(head):
        return "a binary file (it holds NUL bytes)"
    return ""


def detect(head: bytes, middle: bytes = b"", *, whole: bool = False) -> str:
    """The encoding's name for Python, "" where no rule fits. `middle` starts anywhere; `whole` says that the head is all there is."""
    for mark, name in MARKS:
        if head.startswith(mark):
            return name
    if b"\0" in head:
        return _wide(head)
    pieces = [head, middle.partition(b"\n")[2]]  # after its first line break: no character is cut there in any of these
    if _decodes(pieces, "utf-8", whole):
        return "utf-8"
    sample = b"\n".join(pieces)
    if _faulty(sample):
        return "utf-8"
    if _decodes(pieces, "cp949", whole) and _korean(sample[: 2 * ENOUGH].decode("cp949", "replace")):
        return "cp949"
    return _western(sample)


def named(encoding: str) -> str:
    """An encoding for people."""
    name, _, faults = encoding.partition(":")
    return NAMES.get(name, name.upper()) + (" with faults read as U+FFFD" if faults else "")


def checked(encoding: str) -> str:
    """An encoding that a user typed, `utf-8:replace` too."""
    name, colon, faults = encoding.lower().partition(":")
    try:
        "".encode(name)
        if codecs.lookup(name).name.replace("_", "-") in NO_CHARSETS:
            raise LookupError
    except (LookupError, UnicodeError, ValueError):
        raise UserError(f"there is no encoding {encoding!r}{near(name, OFTEN)}") from None
    if colon and faults != "replace":
        raise UserError(f"after the encoding in {encoding!r} only :replace may stand; say {name}:replace to read faults as U+FFFD")
    return {"utf8": "utf-8", "utf-8-sig": "utf-8", "latin1": "latin-1", "iso-8859-1": "latin-1"}.get(name, name) + colon + faults


def unmarked(encoding: str, head: bytes) -> str:
    """What to say instead of a UTF-16 or UTF-32 whose bytes may stand either way, as no mark at the beginning says which; "" where that is clear."""
    marks, instead = UNMARKED.get(codecs.lookup(reader(encoding)[0]).name, ((b"",), ""))
    return "" if head.startswith(marks) else instead


def reader(encoding: str) -> tuple[str, str]:
    """The codec, and what it does with a fault."""
    name, _, faults = encoding.partition(":")
    return name, faults or "strict"


def _decodes(pieces: list[bytes], encoding: str, whole: bool) -> bool:
    try:
        for piece in pieces:
            codecs.getincrementaldecoder(encoding)().decode(piece, whole)  # where it is not whole, a character may be cut at its end
    except UnicodeDecodeError:
        return False
    return True


def _wide(head: bytes) -> str:
    """UTF-16 without a mark: spaces and line breaks have a zero byte, always on the same side."""
    found = []
    for name, zeros in (("utf-16-le", head[1::2].count(0)), ("utf-16-be", head[0::2].count(0))):
        if _decodes([head], name, False):
            text = head[: 2 * ENOUGH & ~1].decode(name, "replace")
            if sum(letter.isprintable() or letter in "\n\r\t" for letter in text) >= 0.95 * len(text):
                found.append((text.count(" ") + text.count("\n"), zeros == len(text), zeros, name))
    spaces, plain, _, name = max(found, default=(0, False, 0, ""))
    return name if spaces or plain else ""


def _faulty(sample: bytes) -> bool:
    """Whether it is UTF-8 with a few faults: the reading then names the first of them, rather than that all is misread."""
    text = sample.decode("utf-8", "replace")
    faults = text.count("\ufffd")
    return len(BEYOND.findall(text)) - faults > 8 * faults


def _korean(text: str) -> bool:
    syllables, beyond = len(HANGUL.findall(text)), len(BEYOND.findall(text))
    if syllables < 0.5 * beyond:
        return False
    against = len(HAN.findall(text)) if syllables < 30 else 0  # of few, none may be by chance: a short Chinese text is half Hangul, half Han
    return len(SYLLABLES.findall(text)) > 0.2 * syllables + against


def _western(sample: bytes) -> str:
    """Latin-1: few high bytes, and those within words. Cyrillic or Chinese bytes are mostly high."""
    sample = sample[:ENOUGH] if not sample.isascii() and not sample[:ENOUGH].isascii() else sample
    high = len(sample) - len(sample.translate(None, HIGH))
    if high > 0.25 * len(sample) or len(BESIDE.findall(sample)) < 0.7 * high:
        return ""
    windows = any(byte in sample for byte in range(0x80, 0xA0))
    return ("cp1252" if _decodes([sample], "cp1252", True) else "") if windows else "latin-1"
