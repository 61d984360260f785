"""The command line: each command a few lines of glue. A user's mistake is one sentence on standard error, and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from unmask import __version__, study
from unmask.errors import UserError, near

PRECISIONS = ("float32", "bf16", "auto")
FIELDS = "Any field of the recipe may be set by its path: --optimizer.lr 2e-4 --mlm.rate 0.3 --model.encoder.depth 6; unmask show RECIPE lists them."

ROLES = ("text", "second", "third", "label", "start", "choices", "id")  # what a column may be to a task


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal has no letter for is no reason to stop
    asked = _parse(sys.argv[1:] if arguments is None else arguments)
    listens = threading.current_thread() is threading.main_thread()
    if listens:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half written is cleaned away
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"unmask: {message}", file=sys.stderr)
        code = _run(asked)
    if listens:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun asks a rank to end that is just ending: nothing is left to clean, and no trace to print
    sys.exit(code)


def _run(asked: argparse.Namespace) -> int:
    try:
        code = int(asked.run(asked) or 0)
        sys.stdout.flush()
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unmask: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        _close()
        return 0
    except OSError as error:  # a disk that is full, a folder that may not be read
        print(f"unmask: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        _close()
        return 2
    return code


def _close() -> None:
    """Send what standard output still holds nowhere: else Python complains of it once more when it ends."""
    with contextlib.suppress(OSError, ValueError):  # where it is no file, as in a test or a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """argparse, saying one sentence."""

    @property
    def options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        print(f"unmask: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is not known{near(str(value), action.choices)}")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser, commands = _parser()
    if not words or words[0] not in commands:
        return parser.parse_args(words)
    command, rest = commands[words[0]], words[1:]
    if words[0] == "study":
        command, rest = _study(command.parse_args(rest[:1]).study), rest[1:]
    found, unknown = command.parse_known_intermixed_args(rest)  # options may stand among the texts, as people type them
    if hasattr(found, "changes"):
        found.changes, unknown = _changes(unknown)
    for word in unknown:
        option = word.split("=")[0]
        command.error(f"there is no option {option}{near(option, command.options)}" if word.startswith("-") else f"{word!r} is one word too many")
    return found


def _changes(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Fields of a recipe, `--optimizer.lr 2e-4` or `--optimizer.lr=2e-4`; and what is none."""
    found, left, rest = [], [], list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name.startswith("--") and (equals or rest):
            found.append((name[2:], value if equals else rest.pop(0)))
        else:
            left.append(name)
    return found, left


def _study(name: str) -> Parser:
    """The parser of one study, whose file says its options and runs it."""
    module = importlib.import_module(f"{study.__name__}.{name}")
    parser = Parser(prog=f"unmask study {name}", description=(module.__doc__ or "").split("\n\n")[0])
    module.command(parser)
    parser.set_defaults(run=module.run)
    return parser


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="unmask", description="A workshop for encoders: BERT and ViT, from raw text or images to a served model.")
    parser.add_argument("--version", action="version", version=f"unmask {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (_of_data, _of_learning, _of_models):
        group(commands)
    return parser, dict(commands.choices)


def _of_data(commands: Any) -> None:
    one = commands.add_parser("demo", help="nearest sentences by a real model, and where it looks; then a BERT from nothing; no network needed")
    one.add_argument("--out", type=Path, help="also write that model to this folder, to try the other commands on")
    one.add_argument("--learn", type=float, metavar="MINUTES", help="then also learn a small BERT from nothing, on Python's own documentation")
    one.add_argument("--home", type=Path, default=Path("runs/demo"), help="where --learn writes (runs/demo)")
    one.set_defaults(run=demo)

    one = commands.add_parser("doctor", help="what is wrong with a data set, before any hour of a GPU: faults, copies, leaks, labels")
    _data(one)
    one.add_argument("--against", nargs="+", metavar="DATA", help="a second data set, such as the test split: what leaks between the two")
    one.add_argument("--label", metavar="NAME", help="the column of the labels, for data that has them")
    one.add_argument("--html", type=Path, metavar="FILE", help="also write one page with plots")
    one.add_argument("--json", action="store_true", help="JSON, for machines")
    one.add_argument("--strict", action="store_true", help="exit with 1 if anything bad is found")
    one.set_defaults(run=doctor)

    one = commands.add_parser("tokenizer", help="learn a WordPiece vocabulary from text, or add words to a model's")
    _data(one)
    one.add_argument("--out", type=Path, required=True, help="the folder to write")
    one.add_argument("--vocab-size", type=_count, default=30_000, metavar="N", help="entries, exactly (30000)")
    one.add_argument("--cased", action="store_true", help="keep upper case (without: all is lowercased, accents and syllables are kept)")
    one.add_argument("--by", default="frequency", help="how pieces are chosen: frequency, or likelihood as WordPiece's inventors did (frequency)")
    one.add_argument("--hangul", default="syllables", help="syllables, or jamo: taken apart, accents stripped, as BERT's uncased models do (syllables)")
    one.add_argument("--coverage", type=float, default=0.9995, metavar="SHARE", help="the share of all words that the alphabet must spell (0.9995)")
    one.add_argument("--least", type=_count, metavar="N", help="how often a piece must stand (2; by likelihood as often as the text allows)")
    one.add_argument("--memory", default="2GB", help="what may be used; beyond it the disk is (2GB)")
    one.add_argument("--against", type=Path, metavar="VOCABULARY", help="a vocab.txt or a folder to compare with")
    one.add_argument("--extend", metavar="MODEL", help="add words to this model instead: those that save the most pieces")
    one.add_argument("--words", type=_count, default=1000, metavar="N", help="how many words --extend adds (1000)")
    one.set_defaults(run=tokenizer)

    one = commands.add_parser("prepare", help="text to token shards, once, on all cores; run again after a stop, it goes on")
    _data(one)
    one.add_argument("--tokenizer", required=True, metavar="FOLDER", help="what `unmask tokenizer` wrote, or any model folder")
    one.add_argument("--out", type=Path, required=True, help="the folder to write")
    one.add_argument("--validation", type=float, default=0.005, metavar="SHARE", help="the share of documents kept for validation, by their hash (0.005)")
    one.add_argument("--processes", type=_count, metavar="N", help="how many work at once (all)")
    one.add_argument("--memory", metavar="SIZE", help="what may be used, such as 2GB; fewer processes keep under it")
    one.add_argument("--engine", default="processes", help="processes of this machine, or ray: a cluster (processes)")
    one.add_argument("--dry-run", action="store_true", help="say the size and write nothing")
    one.set_defaults(run=prepare)


def _of_learning(commands: Any) -> None:
    one = commands.add_parser("train", help="learn what a recipe says; a folder of a run goes on where it was", epilog=FIELDS)
    one.add_argument("recipe", help="such as bert.small (`unmask show recipes`), or the folder of a run, which is resumed")
    one.add_argument("--out", type=Path, help="the folder to write")
    _learning(one)
    one.add_argument("--validation", nargs="+", metavar="FILE", help="of a task: examples to be judged by (none: a tenth of the others)")
    _columns(one)
    one.set_defaults(run=train)

    one = commands.add_parser("plan", help="measure a few steps of a recipe here, and say what the whole run takes", epilog=FIELDS)
    one.add_argument("recipe", help="such as bert.small")
    one.add_argument("--seconds", type=float, default=10.0, help="how long to measure (10)")
    one.add_argument("--json", action="store_true", help="JSON, for machines")
    _learning(one)
    one.set_defaults(run=plan)

    one = commands.add_parser("prove", help="show that a recipe computes the same in any parts, ranks and layouts, and resumes exactly", epilog=FIELDS)
    one.add_argument("recipe", help="such as bert.small")
    one.add_argument("--ranks", type=_count, nargs="*", default=[2, 4], help="how many processes to try (2 4)")
    one.add_argument("--quick", action="store_true", help="without compiling, which takes minutes on a CPU")
    _learning(one)
    one.set_defaults(run=prove)


def _of_models(commands: Any) -> None:
    one = commands.add_parser("predict", help="ask a model: fill masks, classify, tag, answer, next sentence")
    one.add_argument("model", help="a model folder, or a hub id")
    one.add_argument("input", nargs="*", help="texts, pictures, or files of them (a line or a JSON object each); none: standard input")
    one.add_argument("--task", help="fill, next, classify, tagging, spans or replaced; by default what the folder was made for")
    one.add_argument("--pair", metavar="TEXT", help="the second text for every input (the context, for a question), or a file that holds it")
    one.add_argument("--top", type=_count, default=5, help="how many guesses for a mask (5)")
    _common(one)
    one.set_defaults(run=predict)

    one = commands.add_parser("embed", help="one vector a text or picture")
    one.add_argument("model", help="a model folder, or a hub id")
    one.add_argument("input", nargs="*", help="texts, pictures, or files of them; none: standard input")
    one.add_argument("--out", type=Path, help="write all vectors to this .npy file")
    one.add_argument("--prompt", help="the name of one of the model's prompts")
    _common(one, precision="auto")
    one.set_defaults(run=embed)

    one = commands.add_parser("evaluate", help="metrics of a model on labelled data, with 95%% intervals; its worst answers; against another model")
    one.add_argument("model", help="a model folder, or a hub id")
    one.add_argument("data", nargs="+", help="csv, tsv, jsonl, parquet, CoNLL columns, SQuAD's JSON, or a folder of GLUE's files")
    one.add_argument("--task", help="classify, tagging, spans or choice; by default what the folder was made for")
    one.add_argument("--split", default="dev", help="of a folder that has files of several: train, dev or test (dev)")
    _columns(one)
    one.add_argument("--against", metavar="MODEL", help="another model on the same examples: the difference, and how often chance makes as much")
    one.add_argument("--worst", type=int, default=5, metavar="N", help="how many of its worst answers to show (5)")
    _common(one)
    one.set_defaults(run=evaluate)

    one = commands.add_parser("show", help="what a folder holds, of a model or of shards; `show tasks`, `show families`, `show recipes`")
    one.add_argument("thing", help="a model folder, a hub id, a folder of shards, a recipe, or tasks, families, recipes")
    one.add_argument("--json", action="store_true", help="JSON, for machines")
    one.add_argument("--statistics", action="store_true", help="of shards: what masks, pairs and packing come to on their first million tokens")
    one.set_defaults(run=show)

    one = commands.add_parser("study", help="what a model knows, measured: " + ", ".join(study.names()))
    one.add_argument("study", metavar="NAME", choices=study.names(), help=f"{', '.join(study.names())}; unmask study NAME --help says what each takes")


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number above 0")
    return int(word)


def _data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", help="files, folders, patterns, addresses in an object store, or - for standard input")
    parser.add_argument("--kind", help="text, jsonl, csv, tsv or parquet, where the ending does not say it")
    parser.add_argument("--layout", help="of plain text: blank (documents separated by blank lines), line (one a line) or file (one a file)")
    parser.add_argument("--encoding", help="such as cp949; utf-8:replace reads faults as U+FFFD (found by itself, and said)")
    parser.add_argument("--column", help="the column or field that holds the text")


def _learning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", nargs="+", metavar="DATA", help="folders that `unmask prepare` wrote; of a task, examples (the recipe's data.path)")
    parser.add_argument("--steps", type=_count, metavar="N", help="how many (the recipe's stop, which also takes 1e9tok, 3ep or 10min)")
    parser.add_argument("--model", metavar="FOLDER", help="go on from the weights of this model (the recipe's start)")
    parser.add_argument("--device", help="cpu, cuda; by default a GPU where there is one")
    parser.set_defaults(changes=[])


def _columns(parser: argparse.ArgumentParser) -> None:
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="COLUMN", help=f"of examples, the column that holds the {role}, where it is not found")


def _named(asked: argparse.Namespace) -> dict[str, str]:
    """The columns that were named, by their roles."""
    return {role: name for role in ROLES if (name := getattr(asked, role, None))}


def _common(parser: argparse.ArgumentParser, precision: str = "float32") -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines, also on a terminal (piped, they come anyway)")
    parser.add_argument("--precision", choices=PRECISIONS, default=precision, help=f"how exactly to compute ({precision})")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one")


# ---- the commands


def demo(asked: argparse.Namespace) -> None:
    from unmask.study import demo

    demo.run(asked.out)
    if asked.learn:
        demo.learn(asked.learn, asked.home)


def doctor(asked: argparse.Namespace) -> int:
    from unmask.data import corpus, doctor_page
    from unmask.data.doctor import examine
    from unmask.progress import Progress, megabytes

    found = _sources(asked, asked.data)
    against = _sources(asked, asked.against) if asked.against else ()
    if asked.html:
        doctor_page.may_write(asked.html)
    with Progress() as told:
        told.stage("looked at", "MB", (corpus.expected(found) or 0) / 1e6)
        report = examine(found, against, asked.label, tell=lambda text: told.add(megabytes(text)))
    if asked.html:
        doctor_page.write(report, asked.html)
    if asked.json:
        print(json.dumps(report.json(), ensure_ascii=False))
    else:
        doctor_page.show(report)
    return int(asked.strict and report.bad)


def tokenizer(asked: argparse.Namespace) -> None:
    from unmask.data import corpus
    from unmask.progress import Progress, megabytes
    from unmask.tokenizer import learn, report

    if asked.extend:
        return _extend(asked)
    against = report.load(asked.against) if asked.against else None
    learn.may_write(asked.out)
    found = _sources(asked, asked.data)
    settings = {name: getattr(asked, name) for name in ("cased", "hangul", "by", "coverage", "least", "memory")}
    with Progress() as told:
        told.stage("read", "MB", (corpus.expected(found) or 0) / 1e6)
        texts = told.over(corpus.texts(found), megabytes)
        learned = learn.learn(texts, asked.vocab_size, against=against, tell=lambda done: told.reach("joined", "pieces", done, asked.vocab_size), **settings)
    learned.save(asked.out)
    learned.report.show()
    return None


def _extend(asked: argparse.Namespace) -> None:
    """The words of a field that a model cuts into the most pieces, made entries of their own."""
    from unmask.data import corpus
    from unmask.model import store
    from unmask.model.extend import extend
    from unmask.progress import Progress, megabytes
    from unmask.tokenizer.words import Rules, choose, count

    loaded = store.load(asked.extend)
    if loaded.tokenizer is None:
        raise UserError(f"{asked.extend} has no vocabulary to add words to; name a model that reads text")
    found = _sources(asked, asked.data)
    with Progress() as told:
        told.stage("read", "MB", (corpus.expected(found) or 0) / 1e6)
        words = count(told.over(corpus.texts(found), megabytes), Rules.of(loaded.tokenizer), asked.memory, hold=False)
    new = extend(loaded, choose(words.tally, loaded.tokenizer, asked.words, least=asked.least or 2))
    words.close()
    store.save(loaded, asked.out)
    print(f"{len(new):,} words were added, such as {', '.join(new[:8])}; {asked.out} has {loaded.tokenizer.size:,} entries")


def prepare(asked: argparse.Namespace) -> None:
    from unmask.data import prepare
    from unmask.model.hub import locate
    from unmask.progress import Progress
    from unmask.tokenizer import Tokenizer
    from unmask.tokenizer.words import memory_size

    found = _sources(asked, asked.data)
    tokenizer = Tokenizer.load(locate(asked.tokenizer))
    guess = prepare.estimate(found, tokenizer, asked.out)
    print(f"{asked.out}: {guess or 'nobody knows how large it will be, as a source does not say its size'}", file=sys.stderr)
    if asked.dry_run:
        return
    if guess is not None:
        guess.check(asked.out)
    settings = {"validation": asked.validation, "processes": asked.processes, "engine": asked.engine}
    with Progress() as told:
        told.stage("written", "million tokens", guess.tokens / 1e6 if guess else None)
        memory = memory_size(asked.memory) if asked.memory else None
        index = prepare.prepare(found, tokenizer, asked.out, memory=memory, tell=lambda shard: told.add(sum(shard.tokens) / 1e6), **settings)
    print(prepare.summary(asked.out, index))


def _sources(asked: argparse.Namespace, names: Sequence[str]) -> tuple[Any, ...]:
    """The files that are meant; what was found out about them is said aloud."""
    from unmask.data import corpus

    found = corpus.sources(names, kind=asked.kind, layout=asked.layout, encoding=asked.encoding, column=asked.column)
    for line in corpus.said(found):
        print(line, file=sys.stderr)
    return found


def train(asked: argparse.Namespace) -> int:
    import torch

    from unmask.train import plan
    from unmask.train.distribute import group
    from unmask.train.loop import train

    run, out = _run_of(asked)
    with group(asked.device) as together:
        try:
            result = train(run, out, together)
        except torch.OutOfMemoryError:
            raise plan.too_large(run, together) from None
    if together.first:
        said = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        ending = "" if result.finished else f"; stopped before its end: unmask train {out} goes on"
        print(f"{out}: {result.steps:,} steps{f', {said}' if said else ''}{ending}")
    return 0 if result.finished else 130


def plan(asked: argparse.Namespace) -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    from unmask.config import plain
    from unmask.train import plan
    from unmask.train.distribute import group

    run, _ = _run_of(asked)
    with group(asked.device) as together:
        try:
            found = plan.plan(run, together, asked.seconds)
        except torch.OutOfMemoryError:
            raise plan.too_large(run, together) from None
    if asked.json:
        return print(json.dumps(plain(found)))
    table = Table("what", "is", show_header=False)
    for line in found.lines():
        table.add_row(*line)
    Console().print(table)
    return None


def prove(asked: argparse.Namespace) -> int:
    from unmask.train.prove import prove

    run, _ = _run_of(asked)
    good = True
    for proof in prove(run, ranks=tuple(asked.ranks), compiled=not asked.quick):
        print(proof, flush=True)
        good &= proof.good
    return int(not good)


def _run_of(asked: argparse.Namespace) -> tuple[Any, Path]:
    """The run that is meant, with what was changed in it, and its folder."""
    from unmask.config import read_json
    from unmask.recipes import recipe
    from unmask.train.run import changed, from_json

    folder = Path(asked.recipe)
    resumed = (folder / "recipe.json").is_file()
    run = from_json(read_json(folder / "recipe.json"), folder / "recipe.json") if resumed else recipe(asked.recipe)
    out = getattr(asked, "out", None) or (folder if resumed else Path("runs") / asked.recipe)
    changes = [("data.path", json.dumps(asked.data))] if asked.data else []
    changes += [("stop", str(asked.steps))] if asked.steps else []
    changes += [("start", asked.model)] if asked.model else []
    changes += [("data.columns", json.dumps(named))] if (named := _named(asked)) else []
    changes += [("data.validation", json.dumps(asked.validation))] if getattr(asked, "validation", None) else []
    return changed(run, [*changes, *asked.changes]), out


def predict(asked: argparse.Namespace) -> None:
    import unmask
    from unmask.data.inputs import read_inputs
    from unmask.infer import report

    model = unmask.load(asked.model, precision=asked.precision, device=asked.device)
    task = asked.task or model.task
    if task == "embed":
        raise UserError("vectors are no answer to print in a table; use unmask embed")
    inputs = read_inputs(asked.input, pair=asked.pair)
    report.answers(inputs, lambda given: model.stream(task, given, **({"top": asked.top} if task == "fill" else {})), as_json=asked.json)


def evaluate(asked: argparse.Namespace) -> None:
    import unmask
    from unmask.data.examples import read
    from unmask.infer import report
    from unmask.infer.evaluate import tallied
    from unmask.tasks import tuning
    from unmask.tasks.metrics.tally import compare

    model = unmask.load(asked.model, precision=asked.precision, device=asked.device)
    task = asked.task or model.task
    if task not in tuning.names():
        raise UserError(f"{task} has no labels to be held against; say --task with one of {', '.join(tuning.names())}")
    examples = read(asked.data, task, split=asked.split, columns=_named(asked))
    print(examples.said, file=sys.stderr)
    tally = tallied(model, tuning.find(task)().carded(model.card), examples, asked.worst)
    other = asked.against and unmask.load(asked.against, precision=asked.precision, device=asked.device)
    rival = tallied(other, tuning.find(task)().carded(other.card), examples, 0) if other else None
    report.measures(tally, compare(rival, tally) if rival else None, as_json=asked.json)


def embed(asked: argparse.Namespace) -> None:
    import unmask
    from unmask.data.inputs import read_inputs
    from unmask.infer import report

    model = unmask.load(asked.model, precision=asked.precision, device=asked.device)
    report.vectors(read_inputs(asked.input, pairs=False), lambda given: model.stream("embed", given, prompt=asked.prompt), asked.out)


def show(asked: argparse.Namespace) -> None:
    from unmask import recipes
    from unmask.infer import report

    if not Path(asked.thing).exists() and (found := recipes.shown(asked.thing)) is not None:
        return report.listed(found, as_json=asked.json)
    return report.thing(asked.thing, as_json=asked.json, statistics=asked.statistics)
