"""The user's function of the metrics: it gets each record once, stops the run, may fail; the page's code runs."""

import json
import math
import pathlib
import re
import sys
import types

import jax
import pytest
from saved_runs import config_of, stop_at

from contrastive_jax import config as configs
from contrastive_jax import main
from contrastive_jax import workdir as workdirs
from contrastive_jax.config import approval
from contrastive_jax.training import loop
from contrastive_jax.training.on_log import OnLog
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/how_to/your_tools.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ONE = jax.devices()[:1]
SETTINGS = configs.settings_of(config_of())


def config(**leaves):
    knn = {
        "evaluate.every": "2 steps",
        "evaluate.look": ("knn",),
        "train.duration": "4 steps",
        "log.every": 1,
    }
    small = {"name": "vit", "patch": 4, "dim": 8, "layers": 1, "heads": 2, "hidden": 8}
    return config_of(**knn | leaves) | {"encoder": small}


def seen_of(folder):
    """The records of metrics.jsonl, as the function gets them."""
    for row in workdirs.read_metrics(folder):
        step, timing = row.pop("step"), row.pop("timing", {})
        yield step, {k: float(v) for k, v in (row | timing).items() if not isinstance(v, list)}


def steps_in(workdir):
    with checkpoint.Checkpoints(workdir / "checkpoints", read_only=True) as saved:
        return saved.steps()


def test_a_function_gets_the_replicas_number_if_it_has_such_a_parameter():
    seen = []
    for function in (
        lambda step, metrics, replica: seen.append((step, metrics, replica)),
        lambda step, metrics: seen.append((step, metrics)),
        lambda step, metrics, patience=3: seen.append((step, metrics, patience)),
        lambda *everything: seen.append(everything),
    ):
        OnLog(function, SETTINGS)(1, 10, {"loss": 2.0})
    two = (10, {"loss": 2.0})
    assert seen == [(*two, 1), two, (*two, 3), two]


def test_all_replicas_that_did_not_diverge_have_to_ask():
    calls = OnLog(lambda step, metrics, replica: "stop" if replica == step else None, SETTINGS)
    for step, going, stopped in ((0, [0, 1, 2], False), (1, [0, 1, 2], False), (2, [0, 2], True)):
        for replica in going:
            calls(replica, step, {})
        calls.agree(going)
        assert calls.stopped == stopped, step
    assert OnLog(None, SETTINGS).notes(1, 2) == [] != calls.notes(1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "on_log is 3; it must be a function of step and metrics"),
        (lambda step: None, r"on_log takes \(step\); it is called with \(step, metrics\)"),
        (lambda step, *, scale: None, r"on_log takes \(step, \*, scale\); it is called with"),
        ("gone", "log.on_log is 'gone'; .* write module:function"),
        ("gone:f", "log.on_log is 'gone:f'; Python finds no module 'gone'"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_written(given, message, tmp_path):
    named = {"log.on_log": given} if isinstance(given, str) else {}
    with pytest.raises(ValueError, match=message):
        loop.train(config(**named), tmp_path / "run", on_log=None if named else given, devices=ONE)
    assert not (tmp_path / "run").exists()


def test_a_saved_config_that_names_one_runs_nothing_until_it_is_allowed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(approval, "_allowed", set())
    (tmp_path / "their_log.py").write_text("raise SystemExit")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(config(**{"log.on_log": "their_log:f"})))
    with pytest.raises(ValueError, match=r"log.on_log is 'their_log:f' .*--allow=their_log:f"):
        configs.load(tmp_path / "run")
    named = configs.resolve(str(tmp_path / "run"), {"log.on_log": "their_log:f"})  # the user names it
    assert named.log.on_log == "their_log:f" and "their_log" not in sys.modules


def test_a_record_is_passed_on_once_and_as_written(tmp_path):
    seen = []
    metrics = {"loss": 2.0, "many": [1.0, 2.0], "count": 3}
    for start in (0, 1):
        with workdirs.Logbook(
            tmp_path, start_step=start, tensorboard=False, on_record=lambda *record: seen.append(record)
        ) as book:
            book.write(1, 0.5, metrics, {"seconds": 4})
            book.write(2 + start, 1.0, {"loss": math.nan})
    assert seen[0] == (1, {"epoch": 0.5, "loss": 2.0, "count": 3.0, "seconds": 4.0})
    assert [step for step, _ in seen] == [1, 2, 3] and math.isnan(seen[1][1]["loss"])
    assert all(type(value) is float for _, record in seen for value in record.values())


@pytest.mark.run
def test_it_sees_what_is_written_stops_the_run_and_goes_on(tmp_path, monkeypatch):
    seen = []

    def on_log(step, metrics):
        seen.append((step, metrics))
        return "stop" if metrics.get("eval/knn_top1", 0) > 0 and step == 2 else None

    result = loop.train(config(), tmp_path, quiet=True, devices=ONE, on_log=on_log)
    assert result["step"] == 2 and result["notes"] == ["on_log ended training at step 2 of 4."]
    assert [step for step, _ in seen] == [1, 2, 2] and steps_in(tmp_path) == [2]
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped):
        stop_at(patch, 2)
        loop.train(config(), tmp_path, quiet=True, devices=ONE, on_log=on_log)
    assert loop.train(config(), tmp_path, quiet=True, devices=ONE, on_log=on_log)["notes"] == []
    assert [step for step, _ in seen] == [1, 2, 2, 3, 4, 4] and seen == list(seen_of(tmp_path))


@pytest.mark.run
def test_its_exception_ends_the_run_with_the_step_saved(tmp_path, monkeypatch):
    class Pruned(Exception):
        pass

    def on_log(step, metrics):
        if step == 2:
            raise Pruned

    with pytest.raises(Pruned) as raised:
        loop.train(config(), tmp_path / "run", quiet=True, devices=ONE, on_log=on_log)
    assert "step 2 is saved" in raised.value.__notes__[0] and steps_in(tmp_path / "run") == [2]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "wrong_log.py").write_text(
        "def key(step, metrics):\n    metrics['lost']\ndef yes(step, metrics):\n    return True\n"
    )
    key, yes = (config(**{"log.on_log": f"wrong_log:{name}"}) for name in ("key", "yes"))
    failed = r"log.on_log=wrong_log:key failed: KeyError: 'lost' \(.*wrong_log.py, line 2\); step 3 is saved"
    with pytest.raises(ValueError, match=failed):
        loop.train(key, tmp_path / "run", quiet=True, devices=ONE)
    with pytest.raises(
        ValueError, match="log.on_log=wrong_log:yes returned True; it must return None, or 'stop'"
    ):
        loop.train(yes, tmp_path / "run", quiet=True, devices=ONE)
    assert steps_in(tmp_path / "run")[-1] == 4
    assert loop.train(config(), tmp_path / "run", quiet=True, devices=ONE)["step"] == 4


@pytest.mark.run
def test_each_replica_is_called_with_its_own_numbers_and_all_have_to_ask(tmp_path):
    seen = {0: [], 1: []}

    def on_log(step, metrics, replica):
        seen[replica].append((step, metrics))
        return "stop" if step == 1 + replica else None

    given = [config(seed=seed) for seed in (0, 1)]
    results = loop.train(given, tmp_path, quiet=True, devices=ONE, on_log=on_log)
    assert [result["step"] for result in results] == [2, 2] and all(result["notes"] for result in results)
    assert [result["step"] for result in loop.train(given, tmp_path, quiet=True, devices=ONE)] == [4, 4]
    for number in (0, 1):
        assert seen[number] == list(seen_of(tmp_path / f"replica_{number}"))[:3]
    assert seen[0] != seen[1]


def stand_in(monkeypatch, tmp_path):
    """Modules of the same interface as optuna, mlflow and trackio; what they were told."""
    told = []

    class TrialPruned(Exception):
        pass

    class Trial:
        def __init__(self, number):
            self.number = number

        def suggest_float(self, name, low, high, *, log):
            return (low, high)[self.number % 2]

        def report(self, value, step):
            told.append((self.number, step, value))

        def should_prune(self):
            return self.number == 1

    class Study:
        def optimize(self, objective, n_trials):
            for number in range(2):
                try:
                    told.append(objective(Trial(number)))
                except TrialPruned:
                    told.append("pruned")

    class Run:
        def __enter__(self):
            told.append("began")

        def __exit__(self, *error):
            told.append("ended")

    modules = {
        "optuna": {
            "TrialPruned": TrialPruned,
            "pruners": types.SimpleNamespace(MedianPruner=lambda n_startup_trials: None),
            "create_study": lambda direction, pruner: Study(),
        },
        "mlflow": {
            "set_experiment": told.append,
            "start_run": Run,
            "log_metrics": lambda metrics, step: told.append((step, metrics)),
        },
        "trackio": {
            "init": lambda project: told.append("began"),
            "log": lambda metrics, step: told.append((step, metrics)),
            "finish": lambda: told.append("ended"),
        },
    }
    for name, attributes in modules.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    for code in BLOCKS:
        if found := re.match(r"# (\w+)\.py\n", code):
            (tmp_path / f"{found[1]}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return told


def test_early_stopping_of_the_page_waits_three_evaluations():
    page = {}
    exec(BLOCKS[0], page)
    scores = [0.5, 0.6, 0.6, 0.55, 0.6, 0.7]
    answers = [page["stop_early"](step, {"eval/knn_top1": score}) for step, score in enumerate(scores)]
    assert answers == [None] * 4 + ["stop", None] and page["stop_early"](6, {"loss": 1.0}) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(BLOCKS)), ids=["early", "optuna", "mlflow", "trackio"])
def test_the_programs_of_the_page_run(number, tmp_path, monkeypatch):
    told = stand_in(monkeypatch, tmp_path)
    exec(compile(BLOCKS[number], "your_tools.md", "exec"), {})
    sys.modules.pop("early", None)
    (folder,) = {path.parent for path in (tmp_path / "runs").glob("*/metrics.jsonl")} - {
        tmp_path / "runs/trial_1"
    }
    whole = list(seen_of(folder))
    if number == 1:
        assert (folder / "result.json").is_file()
    elif number == 2:
        scored = [(0, step, row["eval/knn_top1"]) for step, row in whole if "eval/knn_top1" in row]
        assert told[: len(scored)] == scored and told[-1] == "pruned" and told[-2][:2] == (1, 5)
        assert told[len(scored)] > 0.1
    else:
        assert told[-len(whole) - 1 :] == [*whole, "ended"]


def test_the_command_of_the_page_names_it(tmp_path, monkeypatch):
    stand_in(monkeypatch, tmp_path)
    (settings,) = main.resolved(
        ["--config=digits:scale=smoke", "--config.log.on_log=early:stop_early"], None, "train"
    )
    assert settings.log.on_log == "early:stop_early"
    assert OnLog(None, settings)(0, 1, {"loss": 1.0}) is None
    sys.modules.pop("early", None)
