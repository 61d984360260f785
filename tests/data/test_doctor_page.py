"""The page needs nothing from outside, shows text as text, and is written whole or not at all."""

from __future__ import annotations

import csv
import json
import os
import pydoc_data.topics
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from unmask.data.corpus import sources
from unmask.data.doctor import Finding, Labels, Report, examine
from unmask.data.doctor_page import SHOWN, may_write, page, show, write
from unmask.errors import UserError

EVIL = "<script>alert('x')</script>"
TEXTS = [text[:2_000] for text in list(pydoc_data.topics.topics.values())[:20]]
VOID = {"meta", "br", "rect"}


class Reader(HTMLParser):
    """Every tag with its attributes, and the text between; an error where tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def named(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a table whose texts, labels and name would all like to be HTML."""
    place = tmp_path_factory.mktemp("a & <b>")
    rows = [(text, "plain") for text in TEXTS] + [(f"{EVIL} https://example.org", EVIL), (f"{EVIL} https://example.org", "\"&quot;'")]
    with (place / "<i>rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    found = sources([place / "<i>rows.csv"])
    return examine(found, found, "label")


def test_the_page_is_one_file_that_asks_for_nothing(report: Report) -> None:
    read = Reader(page(report))
    names = {name for name, _ in read.tags}
    assert names <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "td", "th", "figure", "svg", "rect", "text"}
    assert not {key for _, attributes in read.tags for key in attributes} & {"src", "href", "srcset", "onload", "onclick", "style", "xlink:href"}
    assert not re.search(r"url\(|@import", page(report))
    assert "default-src 'none'" in str([one.get("content") for one in read.named("meta")])
    assert page(replace(report, said=(), labels=None, findings=())).count("http") == 1, "http-equiv"


def test_text_stays_text(report: Report) -> None:
    text = page(report)
    assert "<script" not in text
    assert "<i>" not in text
    said = "\n".join(Reader(text).said)
    assert EVIL in said
    assert "<i>rows.csv" in said
    assert any(EVIL in str(one["aria-label"]) for one in Reader(text).named("svg"))
    assert any("\"&quot;'" in str(one["aria-label"]) for one in Reader(text).named("svg"))


def test_its_plots_show_the_numbers(report: Report) -> None:
    text = page(report)
    svgs = re.findall(r"<svg.*?</svg>", text)
    assert len(svgs) == text.count("<figure>") == 4
    heights = [float(one) for one in re.findall(r'<rect[^>]* height="([\d.]+)"><title>', svgs[0])]
    counts = list(report.profile.histogram.values())
    assert heights == pytest.approx([180 * count / max(counts) for count in counts], abs=0.06)
    widths = [float(one) for one in re.findall(r'<rect [^>]*width="([\d.]+)"', svgs[3])]
    assert widths == pytest.approx([480 * share for share in (20 / 22, 1 / 22, 1 / 22)], abs=0.06)
    assert len(re.findall("<svg", page(replace(report, labels=None)))) == 3
    for svg in svgs:
        wide, tall = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
        for x, y, width, height in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg):
            assert float(x) + float(width) <= wide
            assert float(y) + float(height) <= tall


def test_of_many_labels_the_first_are_shown_and_the_rest_summed(report: Report) -> None:
    counts = {f"a label with a name of some length, number {number}": 50 - number for number in range(40)}
    labels = Labels(sum(counts.values()), counts, 0, 0, 0, "")
    svg = re.findall(r"<svg.*?</svg>", page(replace(report, labels=labels)))[-1]
    assert svg.count("<rect") == SHOWN + 1
    assert f"{40 - SHOWN} more" in svg
    shares = [float(one) for one in re.findall(r">([\d.]+)%<", svg)]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_every_finding_stands_on_it_with_its_remedy(report: Report) -> None:
    said = Reader(page(report)).said
    assert len(report.findings) >= 2
    for one in report.findings:
        assert {one.severity, one.what, one.cost, one.remedy} <= set(said)
    bad = sum(one.severity == "bad" for one in report.findings)
    assert f"Findings: {bad} bad, {len(report.findings) - bad} to note" in said
    assert "Nothing wrong was found." in Reader(page(replace(report, findings=()))).said


def test_numbers_stand_on_it(report: Report) -> None:
    said = Reader(page(report)).said
    for name, value in [
        ("documents", "22"),
        ("words", f"{report.profile.words:,}"),
        ("exact copies", "4.55% of documents"),
        ("the other data set", "22 documents: 100.00% stand here whole, 100.00% share a run of 13 words"),
    ]:
        assert said[said.index(name) + 1] == value


def test_the_report_is_json(report: Report) -> None:
    assert json.loads(json.dumps(report.json()))["labels"]["counts"][EVIL] == 1


# ---- writing


def test_it_is_written_and_written_again(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "look.html"
    out.write_text("old")
    write(report, out)
    assert out.read_text(encoding="utf-8") == page(report)
    assert [one.name for one in tmp_path.iterdir()] == ["look.html"]
    monkeypatch.chdir(tmp_path)
    write(report, Path("here.html"))
    assert (tmp_path / "here.html").read_bytes() == out.read_bytes()


@pytest.mark.parametrize("where", ["replace", "write"])
def test_nothing_is_left_when_writing_fails(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    out = tmp_path / "look.html"
    out.write_text("old")

    def full(*given: Any) -> Any:
        if where == "write":
            with open(given[0], "wb") as file:
                file.write(given[1][:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full) if where == "replace" else monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError) as caught:
        write(report, out)
    assert str(caught.value) == f"{out} could not be written (No space left on device); free some space or choose another place"
    assert [one.name for one in tmp_path.iterdir()] == ["look.html"]
    assert out.read_text() == "old"


def test_a_missing_folder_is_said(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        write(report, tmp_path / "none" / "look.html")
    assert str(caught.value) == f"there is no folder {tmp_path / 'none'} to write look.html into; make it first"
    (tmp_path / "folder.html").mkdir()
    for folder in (tmp_path / "folder.html", Path(), Path("/")):
        with pytest.raises(UserError) as caught:
            may_write(folder)
        assert str(caught.value) == f"{folder} is a folder and the page is a file; name one, such as {folder / 'doctor.html'}"
    assert [one.name for one in tmp_path.iterdir()] == ["folder.html"]


def test_a_name_too_long_is_said(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be written"):
        write(report, tmp_path / ("x" * 254))


def broken(report: Report) -> Report:
    assert report.labels is not None
    labels = replace(report.labels, counts={"\ud800": 1, "\x1b[31mred": 2})
    return replace(report, labels=labels, findings=(Finding("bad", "half \udfff [bold]of a pair", "cost", "remedy"),))


def test_halves_of_surrogate_pairs_can_be_written(report: Report, tmp_path: Path) -> None:
    write(broken(report), tmp_path / "look.html")
    assert "half ? [bold]of a pair" in (tmp_path / "look.html").read_text(encoding="utf-8")


# ---- a terminal


def test_it_is_shown(report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "4000")
    show(report)
    shown = capsys.readouterr().out
    for one in report.findings:
        assert all(part in shown for part in (one.severity, one.what, one.cost, one.remedy))
    assert report.said[0] in shown
    show(replace(report, findings=()))
    assert "nothing wrong was found" in capsys.readouterr().out


def test_odd_letters_do_not_break_a_terminal(report: Report, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "4000")
    show(broken(report))
    shown = capsysbinary.readouterr().out
    assert b"[bold]of a pair" in shown
    assert b"\x1b" not in shown
