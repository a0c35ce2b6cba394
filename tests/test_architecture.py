"""The house's floors: imports go downward only, heavy libraries wait until they are needed."""

import ast
import pathlib
import re
import subprocess
import sys

import golden_cases
import pytest
from suite import over

from contrastive_jax.config import schema
from contrastive_jax.training import alarms

PACKAGE = pathlib.Path(__file__).parent.parent / "contrastive_jax"
FLOORS = [
    {"system", "kinds"},
    {"types", "lookup", "distributed", "native"},
    {"sharding"},
    {"losses", "models", "augment", "data", "optim"},
    {"contrast"},
    {"evaluators"},
    {"config"},
    {"workdir"},
    {"training"},
    {"commands", "conformance"},
    {"main", "__init__"},
    {"__main__"},
]
LAZY = (
    "sklearn",
    "matplotlib",
    "tensorflow_datasets",
    "grain",
    "orbax",
    "rich",
    "PIL",
    "pyarrow",
    "tensorflow",
    "torch",
    "clu",
    "filelock",
    "scipy",
    "safetensors",
    "jinja2",
)


def folder(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: pathlib.Path, top_only: bool = False):
    """Every module that a file imports, also by ``import_module("...")``, as far as the string is written out."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:  # a module of the package, or what one holds
                whole = PACKAGE.parent / f"{node.module}.{alias.name}".replace(".", "/")
                yield (
                    f"{node.module}.{alias.name}"
                    if whole.is_dir() or whole.with_suffix(".py").exists()
                    else node.module
                )
        elif isinstance(node, ast.Constant) and str(node.value).startswith("contrastive_jax."):
            if len(str(node.value).split()) == 1:
                yield node.value


FILES = sorted(PACKAGE.rglob("*.py"))


def floor_of(name: str) -> int:
    return next(i for i, names in enumerate(FLOORS) if name in names)


@over(FILES)
def test_imports_go_downward(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    own = "__main__" if path.stem == "__main__" else own
    for module in imports(path):
        if module.startswith("contrastive_jax.") and folder(module) != own:
            assert floor_of(folder(module)) < floor_of(own), f"{own} imports {folder(module)}"


def test_the_root_holds_what_all_stand_on():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_no_folder_imports_in_a_circle():
    """Modules of one folder form no circle either, lazy imports left out."""
    names = {
        ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in FILES
    }
    edges = {
        name: {m for m in imports(p, top_only=True) if m in names and m != name} for name, p in names.items()
    }
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            path.append(name)
            for module in edges[name]:
                visit(module)
            path.pop()
            done.add(name)

    for name in names:
        visit(name)


@over(FILES)
def test_heavy_libraries_are_imported_where_they_are_used(path):
    for module in imports(path, top_only=True):
        assert module.split(".")[0] not in LAZY, module


def look_ups(tree: ast.AST):
    """Readings of a config by name: ``config["train"]["batch_size"]``, ``run.settings.get("seed")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            whole, name = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            whole, name = node.func.value, node.args[0] if node.args else node
        else:
            continue
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            continue
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        holder = ast.unparse(whole).rpartition(".")[2]
        if re.fullmatch(r"\w*(config|settings)\w*", holder) and ast.unparse(whole) != "jax.config":
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_settings_are_read_by_attributes():
    """Whoever needs an option of a config gets it from :class:`contrastive_jax.config.Settings`."""
    text = 'a = config["train"]["size"] + run.config.get("seed") + settings["seed"] + config.train\nconfig["a"] = 1'
    assert len(list(look_ups(ast.parse(text)))) == 4  # of the first, each of its two halves
    files = [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "config"]
    found = {path.relative_to(PACKAGE): list(look_ups(ast.parse(path.read_text()))) for path in files}
    assert {str(path): lines for path, lines in found.items() if lines} == {}


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


NO_VERBS = {"The", "A", "An", "All", "Every", "One", "Each", "Of", "What", "Where", "How", "Whether"}
NOUNS_TOO = {"Runs", "Checks"}


def test_docstrings_begin_with_a_verb_for_functions_and_a_noun_for_classes():
    """What a config names, an alarm and a property are things: of these a noun may speak."""
    sections = (*schema.CHOICES, *schema.SECTIONS, "loss.*", "evaluators.*", "data", "augment")
    named = [function for section in sections for function in schema.functions(section)] + [*alarms.ALARMS]
    things = {(function.__module__, function.__name__) for function in named}
    functions, classes = {}, {}  # where -> its docstring's first word
    for path in FILES:
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if (module, node.name) not in things and "property" not in decorators:
                    words = classes if isinstance(node, ast.ClassDef) else functions
                    words[f"{module}.{node.name}"] = text.split()[0].rstrip(".,:;")
    verb = re.compile("[A-Z][a-z]*([^s]|ss)")
    wrong = {where: word for where, word in functions.items() if word in NO_VERBS or not verb.fullmatch(word)}
    forms = {form for word in functions.values() for form in (word, f"{word}s", f"{word}es")}
    no_nouns = {"Of", "What", "Where", "How"} | forms - NOUNS_TOO
    wrong |= {where: word for where, word in classes.items() if word in no_nouns}
    assert not wrong
