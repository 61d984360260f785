"""The doctor's report for people: a table on a terminal, and one page that needs nothing from outside."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.data.doctor import Report
from unmask.errors import UserError

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5d646c; --paper: #ffffff; --line: #d8dce0; --bar: #3565a9; --bad: #b3261e; --note: #8a6100; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a2aab2; --paper: #15181b; --line: #343a40; --bar: #7fa8e0; --bad: #ff8a80; --note: #e0b050; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.soft, td.soft, figcaption { color: var(--soft); }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; width: 8rem; }
.bad { color: var(--bad); font-weight: 600; } .note { color: var(--note); font-weight: 600; }
figure { margin: 0; } svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg rect { fill: var(--bar); }
"""
SHOWN = 12  # bars
ODD = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # a label may hold what moves a terminal's cursor, or what cannot be written


def show(report: Report) -> None:
    """On a terminal, or as plain lines where it is piped."""
    console = Console()
    for line in report.said:
        console.print(_plain(line))
    facts = Table("what", "is", show_header=False)
    for name, value in _facts(report).items():
        facts.add_row(name, _plain(value))
    console.print(facts)
    found = Table("", "finding", "what it costs", "what to do", show_lines=True)
    for one in report.findings:
        found.add_row(Text(one.severity, style="bold red" if one.severity == "bad" else "yellow"), *map(_plain, (one.what, one.cost, one.remedy)))
    console.print(found if report.findings else Text("nothing wrong was found"))


def _plain(text: str) -> Text:
    return Text(ODD.sub("\ufffd", text))


def may_write(out: Path) -> None:
    """Asked before the work, so that it is not done in vain."""
    if os.path.isdir(out):
        raise UserError(f"{out} is a folder and the page is a file; name one, such as {out / 'doctor.html'}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} into; make it first")


def write(report: Report, out: Path) -> None:
    """The page, written beside and renamed."""
    may_write(out)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_bytes(page(report).encode("utf-8", "replace"))
        os.replace(beside, out)
    except OSError as error:
        raise UserError(f"{out} could not be written ({error.strerror or error}); free some space or choose another place") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def page(report: Report) -> str:
    """One HTML page with its plots in it."""
    profile, labels = report.profile, report.labels
    counts = {severity: sum(one.severity == severity for one in report.findings) for severity in ("bad", "note")}
    plots = [("Words a document", _columns({f"{start:,}" if start < 10_000 else f"{start // 1024}k": count for start, count in profile.histogram.items()}))]
    plots += [("Scripts, share of letters", _bars(profile.scripts)), ("Languages, share of characters, by a rule of thumb", _bars(profile.languages))]
    if labels and labels.rows:
        plots.append(("Labels, share of rows", _bars({name: count / labels.rows for name, count in labels.counts.items()})))
    rows = "".join(f"<tr><td>{escape(name)}</td><td class=number>{escape(value)}</td></tr>" for name, value in _facts(report).items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>A look at the data</title><style>{STYLE}</style></head><body><h1>A look at the data</h1>"
        + "".join(f'<p class="soft">{escape(line)}</p>' for line in report.said)
        + f"<h2>Findings: {counts['bad']} bad, {counts['note']} to note</h2>"
        + _findings(report)
        + f"<h2>In numbers</h2><table>{rows}</table>"
        + "".join(f"<h2>{escape(name)}</h2><figure>{plot}</figure>" for name, plot in plots)
        + "</body></html>\n"
    )


def _findings(report: Report) -> str:
    if not report.findings:
        return "<p>Nothing wrong was found.</p>"
    rows = "".join(
        f'<tr><td class="{one.severity}">{one.severity}</td><td>{escape(one.what)}</td><td>{escape(one.cost)}</td><td>{escape(one.remedy)}</td></tr>'
        for one in report.findings
    )
    return f"<table><tr><th></th><th>finding</th><th>what it costs</th><th>what to do</th></tr>{rows}</table>"


def _facts(report: Report) -> dict[str, str]:
    profile, leak, labels = report.profile, report.leak, report.labels
    facts = {
        "documents": f"{profile.documents:,}",
        "characters": f"{profile.characters:,}",
        "words": f"{profile.words:,}",
        "sentences": f"{profile.sentences:,} ({profile.sentences / profile.documents:.1f} a document)",
        "words a document": ", ".join(f"{name} {value:,}" for name, value in profile.lengths.items()),
        "scripts": _listed(profile.scripts),
        "languages": _listed(profile.languages),
        "can form sentence pairs": f"{profile.pairs:.1%} of documents",
        "exact copies": f"{profile.copies:.2%} of documents",
        "near copies": f"{profile.near:.2%} of documents{' (by a sample)' if profile.sampled else ''}",
        "repeated long lines": f"{profile.lines:.2%}",
    }
    if leak:
        facts["the other data set"] = f"{leak.documents:,} documents: {leak.whole:.2%} stand here whole, {leak.runs:.2%} share a run of 13 words"
    if labels:
        facts["labels"] = f"{labels.rows:,} rows: {_listed({name: count / max(1, labels.rows) for name, count in labels.counts.items()})}"
    return facts


def _listed(shares: Mapping[str, float]) -> str:
    first = list(shares.items())[:5]
    return ", ".join(f"{name} {share:.1%}" for name, share in first) + (f" and {len(shares) - 5} more" if len(shares) > 5 else "")


def _columns(counts: Mapping[str, int]) -> str:
    """Upright bars, a power of two each."""
    most, wide = max(counts.values(), default=1), 760 / max(1, len(counts))
    parts = []
    for place, (name, count) in enumerate(counts.items()):
        tall, left = 180 * count / most, 20 + place * wide
        parts.append(
            f'<rect x="{left + 2:.1f}" y="{200 - tall:.1f}" width="{wide - 4:.1f}" height="{tall:.1f}"><title>{name} and more: {count:,}</title></rect>'
        )
        parts.append(f'<text x="{left + wide / 2:.1f}" y="220" text-anchor="middle">{name}</text>')
    label = "; ".join(f"{name}: {count:,}" for name, count in counts.items())
    return f'<svg viewBox="0 0 800 230" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _bars(shares: Mapping[str, float]) -> str:
    """Lying bars, the largest first."""
    shown = list(shares.items())[:SHOWN]
    if len(shares) > SHOWN:
        shown.append((f"{len(shares) - SHOWN} more", sum(list(shares.values())[SHOWN:])))
    parts = []
    for place, (name, share) in enumerate(shown):
        top = 26 * place
        name = name if len(name) < 32 else name[:31] + "…"
        parts.append(f'<text x="225" y="{top + 17}" text-anchor="end">{escape(name)}</text><rect x="235" y="{top + 4}" width="{480 * share:.1f}" height="17"/>')
        parts.append(f'<text x="{242 + 480 * share:.1f}" y="{top + 17}">{share:.1%}</text>')
    label = "; ".join(f"{name}: {share:.1%}" for name, share in shown)
    return f'<svg viewBox="0 0 800 {26 * len(shown) + 6}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
