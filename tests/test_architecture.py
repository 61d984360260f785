"""The plan of the house, held by tests: imports go one way, public names are a list, importing loads nothing heavy."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import unmask
from unmask import plugins
from unmask.model import families
from unmask.model.families.base import Family
from unmask.tasks.base import Task

SOURCE = Path(unmask.__file__).parent
# A room may import from its own rank and from lower ones. `train` and `serve` stand side by side: neither knows the other.
ORDER = ["errors", "plugins", "config", "progress", "tokenizer", "model", "data", "objectives", "tasks", "infer", "train serve", "recipes", "study", "cli"]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms.split()}
PUBLIC = ["Predictor", "UserError", "__version__", "load", "recipe", "train"]
# Inside model, the same: files know only those before them.
MODEL = ["fused", "kernels", "layout", "encoder", "embed", "heads", "model", "folder", "card", "hub", "families", "weights", "store", "extend"]


def imports(path: Path) -> list[tuple[str, ast.AST]]:
    """Every module of ours that a file imports, wherever the statement stands."""
    found: list[tuple[str, ast.AST]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; name the room"
            module = node.module or ""
            found += [(f"{module}.{alias.name}", node) for alias in node.names]
    return [(name, node) for name, node in found if name.split(".")[0] == "unmask"]


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_room_has_its_rank() -> None:
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in files()} - {"__init__", "__main__"}
    assert rooms <= set(RANK), f"no place in the order of imports: {sorted(rooms - set(RANK))}"


def test_imports_go_one_way() -> None:
    wrong = []
    for path in files():
        parts = path.relative_to(SOURCE).parts
        room = parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for name, node in imports(path):
            other = name.split(".")[1] if "." in name else "cli"  # the bare package is everything at once: only the top may have it
            if other in RANK and (RANK[other] > RANK[room] or (RANK[other] == RANK[room] and other != room)):
                wrong.append(f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)} imports {name}")
    assert not wrong


def test_files_of_the_model_know_only_those_before_them() -> None:
    wrong = []
    for path in sorted((SOURCE / "model").rglob("*.py")):
        own = path.relative_to(SOURCE / "model").parts[0].removesuffix(".py")
        for name, _ in imports(path):
            parts = name.split(".")
            if own in MODEL and len(parts) > 2 and parts[1] == "model" and parts[2] in MODEL and MODEL.index(parts[2]) > MODEL.index(own):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_public_names() -> None:
    assert sorted(unmask.__all__) == PUBLIC
    assert dir(unmask) == PUBLIC
    for name in PUBLIC:
        assert getattr(unmask, name) is not None


def test_importing_loads_nothing_heavy() -> None:
    """Nor does asking for help, which a person does again and again."""
    heavy = "torch numpy tokenizers safetensors rich PIL huggingface_hub transformers".split()
    code = f"import sys, unmask, unmask.cli\nunmask.cli._parser()[0].format_help()\nprint([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_answers_need_no_peer_library() -> None:
    """transformers and sentence-transformers are what we are measured against, never what we run on."""
    for path in files():
        text = path.read_text(encoding="utf-8")
        for peer in ("transformers", "sentence_transformers", "timm", "torchvision"):
            assert f"import {peer}" not in text
            assert f"from {peer}" not in text


def test_nothing_runs_what_it_reads() -> None:
    """No pickle but torch's weights-only loader, no eval, no shell."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "subprocess.run", "subprocess.Popen"}, f"{path}:{node.lineno}"
                if called == "torch.load":
                    assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords), f"{path}:{node.lineno}"
                if called == "np.load":
                    assert any(k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in node.keywords), f"{path}:{node.lineno}"


def test_only_the_layout_picks_an_attention_kernel() -> None:
    for path in files():
        if path != SOURCE / "model" / "layout.py":
            text = path.read_text(encoding="utf-8")
            assert "scaled_dot_product_attention" not in text, path
            assert "varlen_attn" not in text, path


def test_a_plug_in_is_one_class_in_one_file() -> None:
    for name in families.names():
        assert type(families.family(name)).__module__ == f"unmask.model.families.{name}"
    for name in plugins.names("unmask.tasks"):
        assert plugins.find("unmask.tasks", name, Task).__name__.lower() == name  # type: ignore[type-abstract]


def test_a_class_is_abstract_or_final() -> None:
    """A concrete class with subclasses is a variant in disguise."""

    def descend(kind: type) -> list[type]:
        return [kind, *(found for child in kind.__subclasses__() for found in descend(child))]

    families.families()
    for name in plugins.names("unmask.tasks"):
        plugins.find("unmask.tasks", name, Task)  # type: ignore[type-abstract]
    for kind in (*descend(Family), *descend(Task)):
        assert inspect.isabstract(kind) or not kind.__subclasses__(), kind


def test_tests_mirror_the_source() -> None:
    """So that the next person knows at once where a test belongs."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        where = path.relative_to(tests)
        if where.parts[0] in ("contracts", "parity", "end_to_end", "bench") or where.name in ("test_architecture.py", "test_docs.py"):
            continue
        mirrored = SOURCE / where.parent / where.name.removeprefix("test_")
        assert mirrored.exists(), f"{where} mirrors no file of src/unmask"
