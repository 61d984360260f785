"""A confusion matrix and a reliability diagram as SVG that needs nothing from outside, readable on light and on dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from unmask.tasks.metrics.calibration import Bin, calibration_error
from unmask.tasks.metrics.scores import Array

# Rules and not variables: what draws SVG outside of a browser often knows no variables. Text is readable on the darkest cell and on none.
STYLE = (
    "text{fill:#1c1e21;font:12px system-ui,sans-serif}.paper{fill:#fff}.soft{fill:#5d646c}.bar{fill:#3565a9}.cell{fill:#7fa8e0}.line{stroke:#b6bcc3;fill:none}"
    "@media(prefers-color-scheme:dark)"
    "{text{fill:#e6e8ea}.paper{fill:#15181b}.soft{fill:#a2aab2}.bar{fill:#7fa8e0}.cell{fill:#3565a9}.line{stroke:#4a525a;fill:none}}"
)
NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LONGEST = 18  # letters of a label
CELL = 44


def confusion_picture(labels: Sequence[str], matrix: Array) -> str:
    """Rows are what is true, columns what was said. A cell is as dark as its share of the row, so that rare labels are seen too."""
    size = len(labels)
    left, top = 160, 150
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    parts = []
    for row, label in enumerate(labels):
        middle = CELL * row + CELL / 2
        parts.append(_text(left - 8, top + middle + 4, _cut(label), "end"))
        parts.append(f'<g transform="translate({left + middle + 4:.0f} {top - 8}) rotate(-45)">{_text(0, 0, _cut(label), "start")}</g>')
        for column, other in enumerate(labels):
            x, y, share, count = left + CELL * column, top + CELL * row, float(shares[row, column]), int(matrix[row, column])
            told = f"{_plain(label)} said to be {_plain(other)}: {count:,} ({share:.1%} of its row)"
            parts.append(f'<rect class="cell" x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill-opacity="{0.04 + 0.96 * share:.3f}">')
            parts.append(f"<title>{told}</title></rect>")
            if count:
                parts.append(_text(x + CELL / 2, y + CELL / 2 + 4, _short(count), "middle"))
    side = CELL * size
    parts.append(_text(left + side / 2, top + side + 24, "what was said", "middle", "soft"))
    parts.append(f'<g transform="translate(16 {top + side / 2:.0f}) rotate(-90)">{_text(0, 0, "what is true", "middle", "soft")}</g>')
    return _svg(left + side + 130, top + side + 40, f"Confusion matrix of {size} labels, {int(matrix.sum()):,} examples", parts)


def reliability_picture(bins: Sequence[Bin]) -> str:
    """How often answers were right by how probable they were said to be; bars under the line are too sure. Below, how many of them there are."""
    left, top, side = 60, 30, 360
    most, all_ = max(one.count for one in bins), sum(one.count for one in bins)
    parts = [f'<path class="line" d="M{left} {top + side}V{top}M{left} {top + side}H{left + side}M{left} {top + side}L{left + side} {top}"/>']
    for i in range(5):
        parts.append(_text(left - 8, top + side - side * i / 4 + 4, f"{i / 4:.0%}", "end", "soft"))
        parts.append(_text(left + side * i / 4, top + side + 96, f"{i / 4:.0%}", "middle", "soft"))
    for one in bins:
        x, wide = left + side * one.low, max(side * (one.high - one.low) - 1, 1)
        told = f"<title>{one.count:,} answers said with {one.chance:.1%} on average: {one.right:.1%} right</title>"
        parts.append(f'<rect class="bar" x="{x:.1f}" y="{top + side * (1 - one.right):.1f}" width="{wide:.1f}" height="{side * one.right:.1f}">{told}</rect>')
        tall = 60 * one.count / most
        parts.append(f'<rect class="bar" fill-opacity=".5" x="{x:.1f}" y="{top + side + 14:.1f}" width="{wide:.1f}" height="{tall:.1f}">{told}</rect>')
    said = f"share right by the probability said; calibration error {calibration_error(bins):.3f}, {all_:,} answers"
    parts.append(_text(12, 18, said, "start"))
    return _svg(left + side + 60, top + side + 116, "Reliability diagram", parts)


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="{escape(title)}">'
        f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{_plain(text)}</text>'


def _plain(text: str) -> str:
    """As XML takes it: half of a surrogate pair or a control character would make the whole picture unreadable."""
    return escape(NOT_XML.sub("\ufffd", text))


def _cut(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def _short(count: int) -> str:
    """That fits a cell: 12,345 is 12.3k."""
    for least, unit, letter in ((10**9, 10**9, "G"), (10**6, 10**6, "M"), (10**4, 10**3, "k")):
        if count >= least:
            return f"{count / unit:.3g}{letter}" if count < 999.5 * unit else f"{count / unit:.0f}{letter}"
    return str(count)
