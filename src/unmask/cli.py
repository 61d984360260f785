"""The command line: each command a few lines of glue. A user's mistake is one sentence on standard error, and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from unmask import __version__
from unmask.errors import UserError, near

PRECISIONS = ("float32", "bf16", "auto")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal has no letter for is no reason to stop
    asked = _parse(sys.argv[1:] if arguments is None else arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half written is cleaned away
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"unmask: {message}", file=sys.stderr)
        sys.exit(_run(asked))


def _run(asked: argparse.Namespace) -> int:
    try:
        asked.run(asked)
        sys.stdout.flush()
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("unmask: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        _close()
    except OSError as error:  # a disk that is full, a folder that may not be read
        print(f"unmask: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        _close()
        return 2
    return 0


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
    command = commands[words[0]]
    found, unknown = command.parse_known_intermixed_args(words[1:])  # options may stand among the texts, as people type them
    for word in unknown:
        option = word.split("=")[0]
        command.error(f"there is no option {option}{near(option, command.options)}" if word.startswith("-") else f"{word!r} is one word too many")
    return found


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="unmask", description="A workshop for encoders: BERT and ViT, from raw text or images to a served model.")
    parser.add_argument("--version", action="version", version=f"unmask {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    one = commands.add_parser("demo", help="nearest sentences by a real model, and where it looks; no network needed")
    one.add_argument("--out", type=Path, help="also write that model to this folder, to try the other commands on")
    one.set_defaults(run=demo)

    one = commands.add_parser("predict", help="ask a model: fill masks, classify, tag, answer, next sentence")
    one.add_argument("model", help="a model folder, or a hub id")
    one.add_argument("input", nargs="*", help="texts, pictures, or files of them (a line or a JSON object each); none: standard input")
    one.add_argument("--task", help="fill, next, classify, tagging or spans; by default what the folder was made for")
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

    one = commands.add_parser("show", help="what a folder holds; `show tasks`, `show families`")
    one.add_argument("thing", help="a model folder, a hub id, tasks, or families")
    one.add_argument("--json", action="store_true", help="JSON, for machines")
    one.set_defaults(run=show)
    return parser, dict(commands.choices)


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number above 0")
    return int(word)


def _common(parser: argparse.ArgumentParser, precision: str = "float32") -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines, also on a terminal (piped, they come anyway)")
    parser.add_argument("--precision", choices=PRECISIONS, default=precision, help=f"how exactly to compute ({precision})")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one")


# ---- the commands


def demo(asked: argparse.Namespace) -> None:
    from unmask.study import demo

    demo.run(asked.out)


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


def embed(asked: argparse.Namespace) -> None:
    import unmask
    from unmask.data.inputs import read_inputs
    from unmask.infer import report

    model = unmask.load(asked.model, precision=asked.precision, device=asked.device)
    report.vectors(read_inputs(asked.input, pairs=False), lambda given: model.stream("embed", given, prompt=asked.prompt), asked.out)


def show(asked: argparse.Namespace) -> None:
    from unmask.infer import report

    report.thing(asked.thing, as_json=asked.json)
