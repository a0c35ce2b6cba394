"""Nothing runs that was not asked for: no file that is read can bring code along, but the user's own ``--config``."""

import ast
import json
import pathlib

import numpy as np
import pytest

from contrastive_jax import config as configs

PACKAGE = pathlib.Path(__file__).parent.parent / "contrastive_jax"
EXECUTES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_reader_executes_what_it_reads(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            assert not EXECUTES & {module.split(".")[0] for module in modules}, ast.unparse(node)
        if isinstance(node, ast.Call):
            said = ast.unparse(node)
            assert not (isinstance(node.func, ast.Name) and node.func.id in CALLS), said
            assert "allow_pickle=True" not in said and "weights_only=False" not in said, said
            if ast.unparse(node.func).endswith("exec_module"):  # --config=FILE.py is the user's own Python
                assert path.name == "config.py", said


def test_a_saved_config_is_read_as_data(tmp_path):
    ran = tmp_path / "ran"
    config = configs.plain(configs.base()) | {"name": f"__import__('pathlib').Path({str(ran)!r}).touch()"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert configs.load(str(tmp_path)).name == config["name"] and not ran.exists()


def test_numpy_refuses_pickled_arrays_by_default(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(tmp_path / "bad.npy")
