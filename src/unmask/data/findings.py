"""What the numbers of a data set mean: each finding with what it costs and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from unmask.data.doctor import Finding, Labels, Leak, Profile

FAULTS = {  # what, what it costs, what to do
    "replaced": (
        "U+FFFD, a character that was lost in an earlier conversion,",
        "those words are unreadable and teach noise",
        "convert the text again from its original",
    ),
    "mojibake": (
        "text that was read in a wrong encoding (such as Ã© for é)",
        "its words break into meaningless pieces",
        "convert it again from its original, naming the true encoding",
    ),
    "NUL": ("the character NUL", "it is read as U+FFFD", "remove it, or look whether the file is text at all"),
    "bytes": (
        "bytes that are not of the file's encoding",
        "everything else stops at the first of them",
        "mend the file, name its encoding with --encoding, or read them as U+FFFD with --encoding utf-8:replace",
    ),
    "surrogate": ("half of a surrogate pair", "it is read as U+FFFD", "write the file again with whole characters"),
    "control": ("control characters", "a tokenizer drops them, sometimes between two words that then join", "replace them with spaces"),
}
LITTLE = 1_000_000  # words


def findings(profile: Profile, leak: Leak | None = None, labels: Labels | None = None) -> tuple[Finding, ...]:
    """The worst first."""
    found = [*_faults(profile), *_copies(profile), *([] if labels else _shape(profile))]
    found += [*(_leaks(leak) if leak else ()), *(_labels(labels) if labels else ())]
    return tuple(sorted(found, key=lambda one: one.severity != "bad"))


def _faults(profile: Profile) -> Iterator[Finding]:
    for name, (what, cost, remedy) in FAULTS.items():
        count = profile.faults.get(name, 0)
        if count:
            serious = name != "control" and count > 0.001 * profile.documents
            yield Finding("bad" if serious else "note", f"{what} in {count:,} of {profile.documents:,} documents", cost, remedy)


def _copies(profile: Profile) -> Iterator[Finding]:
    remedy = "keep one of each"
    if profile.copies > 0.001:
        severity = "bad" if profile.copies > 0.05 else "note"
        yield Finding(
            severity, f"{profile.copies:.1%} of the documents are exact copies of others", "they are learned by heart, and leak into held-out text", remedy
        )
    if profile.near > 0.01:
        where = " (by a sample)" if profile.sampled else ""
        cost = "time is spent on what is known, and held-out text is not held out"
        yield Finding("bad" if profile.near > 0.1 else "note", f"{profile.near:.1%} of the documents are near copies of others{where}", cost, remedy)
    if profile.lines > 0.05:
        yield Finding(
            "note", f"{profile.lines:.1%} of the long lines stand elsewhere too", "often menus, licences or headers", "remove lines that many documents share"
        )


def _shape(profile: Profile) -> Iterator[Finding]:
    if profile.pairs < 0.5:
        what = f"only {profile.pairs:.0%} of the documents have two sentences or more"
        cost = "next-sentence pairs cannot be formed from the others"
        remedy = "train without next-sentence pairs, or see whether --layout splits documents that belong together"
        yield Finding("bad" if profile.pairs < 0.05 else "note", what, cost, remedy)
    if profile.words < LITTLE:
        cost = "too little to learn a language from; it is enough to adapt a model that has learned one"
        yield Finding("note", f"{profile.words:,} words in all", cost, "start from a pretrained model, or add text")
    longest, median = profile.lengths["longest"], profile.lengths["median"]
    if longest > 1_000_000:
        cost = "it is cut into many windows whose order says nothing of other documents"
        yield Finding(
            "note", f"the longest document has {longest:,} words, the median {median:,}", cost, "see whether --layout joins documents that are separate"
        )


def _leaks(leak: Leak) -> Iterator[Finding]:
    cost = "a score on the other data set says how well it was learned by heart"
    if leak.whole:
        what = f"{leak.whole:.2%} of the other data set's documents stand here word for word"
        yield Finding("bad" if leak.whole >= 0.01 else "note", what, cost, "remove them from the one that is trained on")
    if leak.mostly or leak.runs > 0.01:
        runs = "share a run of 13 words with this one (or all words, where they are fewer)"
        what = f"{leak.runs:.2%} of the other data set's documents {runs}, {leak.mostly:.2%} half of theirs or more"
        yield Finding("bad" if leak.mostly >= 0.01 else "note", what, cost, "remove the documents that share such runs")


def _labels(labels: Labels) -> Iterator[Finding]:
    if len(labels.counts) < 2:
        only = f"the label {next(iter(labels.counts))!r}" if labels.counts else "no label at all"
        yield Finding("bad", f"every row has {only}", "there is nothing to learn", "name the right column with --label")
    elif (rarest := min(labels.counts.values())) * 20 < (most := max(labels.counts.values())):
        names = [name for name, count in labels.counts.items() if count * 20 < most]
        what = f"the rarest label stands on {rarest:,} rows, the commonest on {most:,}"
        yield Finding("note", what, "always answering the commonest looks good by accuracy", f"judge by macro F1; collect more of {', '.join(names[:5])}")
    if labels.empty:
        what = f"{_rows(labels.empty, labels.rows)} no text"
        yield Finding("bad" if labels.empty > 0.01 * labels.rows else "note", what, "they teach a label for nothing", "remove them")
    if labels.missing:
        what = f"{_rows(labels.missing, labels.rows)} no label"
        yield Finding("bad" if labels.missing > 0.01 * labels.rows else "note", what, "they cannot be trained on", "label or remove them")
    if labels.conflicting:
        what = f"{_rows(labels.conflicting, labels.rows)} a text that stands elsewhere with another label, such as {labels.example!r}"
        severity = "bad" if labels.conflicting > 0.01 * labels.rows else "note"
        yield Finding(severity, what, "no model can be right on all of them", "decide which label is meant, or remove them")
    if strange := [name for name in labels.other if name not in labels.counts]:
        what = f"the other data set has labels that this one lacks: {', '.join(strange[:5])}"
        yield Finding("bad", what, "they can never be answered", "give both the same labels")


def _rows(count: int, total: int) -> str:
    return f"{count:,} of {total:,} rows {'has' if count == 1 else 'have'}"
