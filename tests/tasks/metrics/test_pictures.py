"""Pictures that any reader of XML reads, whatever the labels are called."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from unmask.tasks.metrics.calibration import calibration_error, reliability
from unmask.tasks.metrics.pictures import STYLE, _short, confusion_picture, reliability_picture

SVG = "{http://www.w3.org/2000/svg}"
LABELS = ["<script>alert(1)</script>", "a & 'b' \"c\"", "긍정적인 문장", "إيجابي", "😀👨‍👩‍👧", "nul\x00esc\x1b[2J", "half \ud83d", "x" * 300, ""]


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_labels_of_any_kind() -> None:
    draw = np.random.default_rng(0)
    picture = confusion_picture(LABELS, draw.integers(0, 50, (len(LABELS), len(LABELS))))
    picture.encode()  # half of a surrogate pair could not be written
    found = texts(picture)
    assert "긍정적인 문장" in found
    assert "a & 'b' \"c\"" in found
    assert "😀👨‍👩‍👧" in found
    assert "nul\ufffdesc\ufffd[2J" in found
    assert "half \ufffd" in found
    assert "x" * 17 + "…" in found
    assert "<script>alert(1)</script>"[:17] + "…" in found
    assert not list(ElementTree.fromstring(picture).iter(f"{SVG}script"))


def test_a_cell_is_as_dark_as_its_share_of_the_row() -> None:
    picture = confusion_picture(["a", "b", "c"], np.array([[3, 1, 0], [0, 12_345, 0], [0, 0, 0]]))
    root = ElementTree.fromstring(picture)
    cells = [one for one in root.iter(f"{SVG}rect") if one.get("class") == "cell"]
    assert [float(one.get("fill-opacity") or 0) for one in cells] == [0.76, 0.28, 0.04, 0.04, 1.0, 0.04, 0.04, 0.04, 0.04]
    titles = [one.text for one in root.iter(f"{SVG}title")]
    assert titles[1] == "a said to be b: 1 (25.0% of its row)"
    assert sorted(texts(picture)) == sorted(["a", "b", "c"] * 2 + ["3", "1", "12.3k", "what was said", "what is true"])


@pytest.mark.parametrize(("count", "said"), [(0, "0"), (9_999, "9999"), (10_000, "10k"), (999_999, "1000k"), (1_234_567, "1.23M"), (2 * 10**9, "2G")])
def test_counts_fit_their_cell(count: int, said: str) -> None:
    assert _short(count) == said
    assert len(said) <= 5


def test_a_reliability_diagram() -> None:
    bins = reliability([0.1, 0.9, 0.95, 0.97, 0.99], [0, 1, 1, 1, 0], bins=10)
    root = ElementTree.fromstring(reliability_picture(bins))
    bars = [one for one in root.iter(f"{SVG}rect") if one.get("class") == "bar" and not one.get("fill-opacity")]
    assert len(bars) == 3
    place = {name: float(bars[2].get(name) or 0) for name in ("x", "y", "width", "height")}
    assert place == pytest.approx({"x": 60 + 324, "y": 30 + 120, "width": 35, "height": 240})  # two thirds of them right
    assert f"calibration error {calibration_error(bins):.3f}, 5 answers" in texts(reliability_picture(bins))[-1]


@pytest.mark.parametrize("picture", [confusion_picture(["a"], np.array([[1]])), reliability_picture(reliability([0.5], [1]))])
def test_light_and_dark(picture: str) -> None:
    """Every class has a colour for either, and nothing comes from outside."""
    root = ElementTree.fromstring(picture)
    style = next(root.iter(f"{SVG}style")).text or ""
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    used = {name for one in root.iter() if (name := one.get("class"))}
    assert used
    for name in used:
        assert re.search(rf"\.{name}[,{{]", light), name
        assert re.search(rf"\.{name}[,{{]", dark), name
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def light(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    parts = [int(one * (2 if len(colour) == 3 else 1), 16) / 255 for one in re.findall("." if len(colour) == 3 else "..", colour)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "on"), [("text", "paper"), ("text", "cell"), (".soft", "paper")])
def test_text_can_be_read(scheme: int, text: str, on: str) -> None:
    """4.5 to 1 is WCAG's least."""
    rules = STYLE.split("@media")[scheme]
    found = [re.search(rf"{name}{{fill:#([0-9a-f]+)", rules) for name in (re.escape(text), rf"\.{on}")]
    first, second = sorted(light(one[1]) for one in found if one)
    assert (second + 0.05) / (first + 0.05) > 4.5
