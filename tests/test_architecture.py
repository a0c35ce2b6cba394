"""The house's floors: imports go downward only, heavy libraries wait until they are needed."""

import ast
import pathlib
import subprocess
import sys

import golden_cases
import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "contrastive_jax"
FLOORS = [
    {"types", "sharding", "distributed", "native"},
    {"mirror"},
    {"losses", "models", "augment", "data", "optim"},
    {"contrast"},
    {"diagnostics", "gradient_snr", "recipe", "step", "methods"},
    {"evaluators"},
    {"config", "options"},
    {"alarms", "checkpoint", "logbook", "weights", "workdir"},
    {"run", "encoder"},
    {"recorder", "program", "memory", "utilisation"},
    {"evaluate", "train", "describe", "embed", "export", "preview", "report", "browse"},
    {"main"},
]
# Rooms of one floor that may lean on one another, in this order; those of the second floor are blind to one another.
TOGETHER = {"types": {"sharding"}, "sharding": {"types"}}
LAZY = (
    "sklearn",
    "matplotlib",
    "tensorflow_datasets",
    "grain",
    "orbax",
    "rich",
    "PIL",
    "tensorflow",
    "torch",
    "clu",
    "scipy",
    "safetensors",
)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: pathlib.Path, top_only: bool = False):
    tree = ast.parse(path.read_text())
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module == "contrastive_jax":
                yield from (f"contrastive_jax.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    floor = next(i for i, rooms in enumerate(FLOORS) if own in rooms)
    below = set().union(*FLOORS[:floor])
    for module in imports(path):
        if module.startswith("contrastive_jax.") and room(module) != own:
            beside = room(module) in FLOORS[floor] and floor > 2 or room(module) in TOGETHER.get(own, set())
            assert room(module) in below or beside, f"{own} imports {room(module)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    for module in imports(path, top_only=True):
        assert module.split(".")[0] not in LAZY, module


def test_flax_lives_in_models_only():
    users = {
        p.relative_to(PACKAGE).parts[0] for p in FILES if any(m.split(".")[0] == "flax" for m in imports(p))
    }
    assert users == {"models"}


def test_nothing_heavy_is_loaded_by_importing_the_command():
    code = f"import sys, contrastive_jax.main; print([m for m in {LAZY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout.strip().splitlines()[-1]))
    assert not loaded - {"scipy"}  # jax itself brings scipy


def test_every_golden_case_is_named_by_a_test():
    tests = pathlib.Path(__file__).parent
    if not set(tests.rglob("test_*.py")) <= golden_cases.COLLECTED:
        pytest.skip("not all test files were collected")
    assert golden_cases.every() == golden_cases.NAMED
