"""Replicas: each is the single run of its config, stopped and resumed too; what can be none is refused by name."""

import json
import pathlib
import shutil
import time

import jax
import numpy as np
import optax
import pytest
from saved_runs import assert_same, config_of, left_behind, stop_at
from tiny_methods import ALL, tiny, x64  # noqa: F401

from contrastive_jax import config as configs
from contrastive_jax import main, native, sharding
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import describe, report
from contrastive_jax.evaluators import table
from contrastive_jax.training import (
    compilation,
    encoder,
    evaluation,
    initial,
    loop,
    program,
    recorder,
    replicas,
    resume,
)
from contrastive_jax.training import run as runs
from experiments.gpu.correctness import trained

ONE = jax.devices()[:1]
# Of methods that have one, a number of their own: every kind of place that a number may reach the step from.
OWN = {
    "flatclr_ess": ("temperature.target", 0.2),
    "dual_temperature": ("loss.dual_temperature.factor", 5.0),
    "macl": ("temperature.alpha", 3.0),
    "macl_b": ("temperature.beta", 0.25),
    "linear_tau": ("temperature.end", 0.3),
    "eqco_simclr": ("margin.alpha", 64.0),
    "eqco_moco": ("margin.alpha", 512.0),
    "moco_v1": ("target.decay", 0.9),
    "byol": ("target.decay", 0.9),
    "simo": ("margin.alpha", 64.0),
    "relic_k": ("loss.relic_kl.weight", 2.0),
    "decoupled_nt_xent": ("loss.decoupled_nt_xent.lambda_weight", 0.5),
    "swd_hypersphere": ("loss.sliced_wasserstein.weight", 3.0),
    "dclw": ("optimizer.momentum", 0.5),
}


def assert_near(found, expected, what):
    largest = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * max(largest, 1e-2), err_msg=what)


def assert_replicas_are_single_runs(given, devices=ONE):
    together = replicas.program_of(given, devices)
    state, history = trained(together)
    for number, config in enumerate(given):
        single, alone = trained(program.single(runs.prepare(config, ONE)))
        mine = jax.device_get(replicas.state_of(state, number))
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(single), jax.tree.leaves(mine), strict=True
        ):
            assert_near(b, a, f"replica {number}{jax.tree_util.keystr(path)}")
        for step, (metrics, expected) in enumerate(zip(history, alone, strict=True)):
            assert metrics.layout == expected.layout
            for name, value in expected.unpacked()[0].items():
                assert_near(metrics.unpacked()[number][name], value, f"replica {number}, step {step}: {name}")
    return together


# Methods that differ from another only in a function of the comparison, which has no state, or in its numbers: one
# device and eight compare them in test_step.py.
FORMULAS = (
    *("flatclr", "flat_nce_plus", "dcl", "macl_without_reweighting", "macl_w", "simclr_k", "swd_normal"),
    *("swd_hypercube", "moco_v2", "eqco_moco_v2", "ifm", "rince", "alpha_cl", "label_smoothing", "vrns"),
    *(
        "dhel",
        "spectral",
        "kcl",
        "f_micl",
        "temperature_free",
        "dystress",
        "adnce",
        "margin_mask",
        "hardness",
    ),
)


@pytest.mark.parametrize("method", [case for case in ALL if case.values[0] not in FORMULAS])
def test_a_replica_is_the_single_run_of_its_config(method, x64):  # noqa: F811
    """In float64, so that what differs is the program and not its rounding."""
    leaf, value = OWN.get(method, ("temperature.tau", 0.25))
    changed = {"seed": 3, "schedule.learning_rate": 0.01, "optimizer.weight_decay": 1e-2, leaf: value}
    together = assert_replicas_are_single_runs(
        [tiny(method, dtype="float64", **leaves) for leaves in ({}, changed)]
    )
    with jax.set_mesh(together.mesh):
        numbers, _ = together.open_feed(0, print).feed(0)
    assert len(numbers) >= 4


@pytest.mark.run
def test_replicas_lie_over_the_devices_that_share_them_and_say_nothing_to_each_other(x64):  # noqa: F811
    options = {"dtype": "float64", "train.batch_size": 30}  # which eight devices could not share
    given = [tiny("flatclr_ess", seed=seed, **options) for seed in range(6)]
    together = assert_replicas_are_single_runs(given, jax.devices())
    assert dict(together.mesh.shape) == {sharding.REPLICA: 6}
    with jax.set_mesh(together.mesh):
        state, feed = together.initial_state([None] * 6), together.open_feed(0, print)
        step, _ = compilation.compiled_step(together, feed, state)
    assert not any(kind in step.as_text() for kind in ("all-gather", "all-reduce", "all-to-all"))
    assert {x.sharding.num_devices for x in jax.tree.leaves(state)} == {6}


@pytest.mark.run
def test_side_by_side_is_one_after_the_other(x64):  # noqa: F811
    """What an accelerator compiles, compiled here: vmap in the place of the loop that a CPU takes."""
    given = [tiny("moco_v1", dtype="float64", seed=seed) for seed in (0, 1)]
    state, history = trained(replicas.program_of(given, ONE))
    together = replicas.program_of(given, ONE, side_by_side=True)
    with jax.set_mesh(together.mesh):
        other, feed = together.initial_state([None, None]), together.open_feed(0, print)
        step = native.jit(together.step(feed))
        for i in range(3):
            other, _ = step(other, feed.feed(i))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(other), strict=True):
        assert_near(jax.device_get(b), a, jax.tree_util.keystr(path))


SHORT = {"train.duration": "4 steps", "log.every": 2, "evaluate.final": True, "evaluate.every": "2 steps"}
KNN = {"evaluators": {"knn": {"name": "knn"}}, "evaluate.look": ("knn",), "evaluate.rows": ("trained",)}


def several(method="flatclr", **leaves):
    given = [config_of(8, method, **SHORT, seed=seed, **leaves) for seed in (0, 1)]
    for config in given:
        config["evaluators"] = KNN["evaluators"]
        config["evaluate"] |= {"look": ["knn"], "rows": ["trained"]}
    return given


def lines(workdir):
    return [
        {name: value for name, value in row.items() if name != "timing"}
        for row in workdirs.read_metrics(workdir)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two replicas that ran through."""
    workdir, began = tmp_path_factory.mktemp("replicas") / "whole", time.perf_counter()
    results = loop.train(several(), str(workdir), quiet=True, devices=ONE)
    assert sum(result["seconds"] for result in results) <= time.perf_counter() - began  # they share the time
    return several(), workdir, results


@pytest.mark.run
def test_a_replicas_folder_is_the_workdir_of_its_run(whole, tmp_path):
    given, workdir, results = whole
    assert json.loads((workdir / "replicas.json").read_text()) == [{"seed": 0}, {"seed": 1}]
    loop.train(given[1], str(tmp_path / "single"), quiet=True, devices=ONE)
    mine, single = workdir / "replica_1", tmp_path / "single"
    assert {p.name for p in single.iterdir()} - {p.name for p in mine.iterdir()} <= {".lock"}
    assert json.loads((mine / "config.json").read_text()) == json.loads((single / "config.json").read_text())
    for found, expected in zip(lines(mine), lines(single), strict=True):
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=0.05, atol=0.05, err_msg=name)
    assert results[1]["evaluations"]["trained"]["knn"]["top1"] > 0.3
    assert results[1]["lost_to_data"] == pytest.approx(results[0]["lost_to_data"], rel=0.5)  # both waited
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    features = [encoder.load_encoder(path)(images) for path in (mine, single)]
    np.testing.assert_allclose(*features, rtol=0.01, atol=0.01)
    again = loop.train(
        given[1], str(mine), quiet=True, devices=ONE
    )  # it goes on as a single run: there is no more
    assert again["evaluations"] == results[1]["evaluations"]


@pytest.mark.run
def test_a_column_that_fails_while_they_train_is_said_once_of_each(tmp_path, capfd):
    given = several()
    for config in given:
        config["evaluators"] = KNN["evaluators"] | {
            "bad": {"name": "sgd", "learning_rate": 1e38, "epochs": 1}
        }
        config["evaluate"] |= {"look": ["bad", "knn"], "final": False}
    loop.train(given, str(tmp_path), devices=ONE)
    said = [line for line in capfd.readouterr().out.splitlines() if "evaluate.look: bad failed: " in line]
    assert len(said) == 2 and all(f"replica {number}" in line for number, line in enumerate(said))
    for number in (0, 1):
        rows = lines(tmp_path / f"replica_{number}")
        assert [row["step"] for row in rows if "eval/knn_top1" in row] == [2, 4]
        assert not any("eval/bad_top1" in row for row in rows)


@pytest.mark.run
def test_replicas_are_judged_again_in_one_table(whole, tmp_path, capsys):
    given, workdir, results = whole
    again, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    shutil.copytree(workdir, again)
    main.perform("evaluate", given, str(again), True)
    shown = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert shown == ["seed=0", "seed=1", "mean ± sd of 2"]
    elsewhere.mkdir()
    shutil.copy(again / "replica_1" / "evaluation.json", elsewhere)
    (row,) = workdirs.read_results(elsewhere)
    top1 = results[1]["evaluations"]["trained"]["knn"]["top1"]
    assert (row["row"], row["step"], row["knn.top1"]) == ("trained", 4, top1)
    with pytest.raises(ValueError, match="does not hold the 3 replicas"):
        main.perform("evaluate", [*given, given[0]], str(again), True)


@pytest.mark.run
def test_tables_of_many_runs_are_flat_rows(whole, tmp_path):
    given, workdir, results = whole
    rows = workdirs.read_results(workdir)
    assert [(row["seed"], row["row"]) for row in rows] == [
        (number, name) for number in (0, 1) for name in results[number]["evaluations"]
    ]
    assert rows[0]["knn.top1"] == results[0]["evaluations"]["trained"]["knn"]["top1"]
    assert rows[0]["loss"] == "+".join(given[0]["loss"])
    assert rows[-1]["workdir"] == str(workdir / "replica_1") and "train.batch_size" not in rows[0]
    copy = tmp_path / "diverged"
    shutil.copytree(workdir, copy)
    (copy / "replica_0/result.json").rename(copy / "replica_0/diverged.json")
    first, *others = workdirs.read_results(copy)
    assert (
        first == {"workdir": str(copy / "replica_0"), "loss": rows[0]["loss"], "seed": 0, "row": "diverged"}
        and others
    )
    (copy / "replica_1/result.json").unlink()
    with pytest.raises(FileNotFoundError, match="replica_1 has no result.json: the run has not ended"):
        workdirs.read_results(copy)
    with pytest.raises(FileNotFoundError, match="holds 2 replicas; .*replica_0"):
        workdirs.read_metrics(workdir)


@pytest.mark.run
def test_replicas_start_from_an_encoder_as_their_runs_do(whole):
    _, workdir, _ = whole
    given = [tiny("flatclr", seed=seed, **{"init.checkpoint": str(workdir / "replica_0")}) for seed in (0, 1)]
    state = initial.first_state(replicas.program_of(given, ONE), print)
    for number, config in enumerate(given):
        run = runs.prepare(config, ONE)
        with jax.set_mesh(run.mesh):
            expected = jax.device_get(initial.first_state(program.single(run), print))
        jax.tree.map(
            np.testing.assert_array_equal, jax.device_get(replicas.state_of(state, number)), expected
        )
    holds = optax.GradientTransformation(
        lambda params: params, lambda *updates: updates
    )  # as schedule-free ones do
    run = run._replace(recipe=run.recipe._replace(optimizer=holds))
    with jax.set_mesh(run.mesh):
        held = jax.device_get(initial.first_state(program.single(run), print)).optimizer
    jax.tree.map(np.testing.assert_array_equal, held, expected.params)


@pytest.mark.run
def test_replicas_stopped_and_resumed_are_uninterrupted_bit_for_bit(whole, tmp_path, monkeypatch):
    given, workdir, results = whole
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped, match="stopped at step 3 of 4"):
        stop_at(patch, 2)
        loop.train(given, str(tmp_path / "parts"), quiet=True, devices=ONE)
    with pytest.raises(ValueError, match="holds replicas of seed=0,1, but these are replicas of seed=0,2"):
        loop.train([given[0], given[1] | {"seed": 2}], str(tmp_path / "parts"), quiet=True, devices=ONE)
    with pytest.raises(ValueError, match="this workdir holds 2 replicas, but this is a single run"):
        loop.train(given[0], str(tmp_path / "parts"), quiet=True, devices=ONE)
    again = loop.train(given, str(tmp_path / "parts"), quiet=True, devices=ONE)
    for number in (0, 1):
        assert again[number]["evaluations"] == results[number]["evaluations"]
        here, there = (path / f"replica_{number}" for path in (tmp_path / "parts", workdir))
        assert_same(*(left_behind(path, given[number]) for path in (here, there)))


@pytest.mark.run
def test_a_replica_that_diverges_takes_no_other_with_it(whole, tmp_path, capsys, monkeypatch):
    given, workdir, results = whole
    wild = several(**{"schedule.learning_rate": 1e30, "schedule.warmup": "0 steps"})[1]
    wild["schedule"] = given[0]["schedule"] | {"learning_rate": 1e30}
    with monkeypatch.context() as patch, pytest.raises(loop.Stopped, match="stopped at step 3 of 4"):
        stop_at(patch, 2)
        loop.train([given[0], wild], str(tmp_path), devices=ONE)
    assert "replica 1: step" in capsys.readouterr().out
    found = loop.train([given[0], wild], str(tmp_path), devices=ONE)  # zeros went on, and are not judged
    assert "1e+30" not in capsys.readouterr().out
    assert "not finite" in found[1]["diverged"] and f"none in {tmp_path}/checkpoints" in found[1]["diverged"]
    assert found[0]["evaluations"] == results[0]["evaluations"]
    assert not (tmp_path / "replica_1" / "result.json").exists()
    again = loop.train([given[0], wild], str(tmp_path), quiet=True, devices=ONE)
    assert again[1] == found[1] and again[0]["evaluations"] == found[0]["evaluations"]
    together = replicas.program_of([given[0], wild], ONE)
    judges = [
        evaluation.Evaluator(run.settings, run.source, run.mesh, run.evaluators) for run in together.runs
    ]
    first, _ = together.weights(together.initial_state([None, None]))
    judged = evaluation.tables(judges, [first, None], together.differences, quiet=True)
    assert [bool(table) for table in judged] == [True, False]
    main.perform("evaluate", [given[0], wild], str(tmp_path), True)
    assert "replica 1 is not evaluated: step" in capsys.readouterr().out
    page = report.report(
        given[0] | {"report": given[0]["report"] | {"images": 20}}, str(tmp_path), quiet=True
    )
    assert "diverged: step" in pathlib.Path(page).read_text()


@pytest.mark.run
def test_where_the_first_replica_diverges_the_next_one_is_shown(tmp_path, capsys):
    given = several()
    given[0]["schedule"] = given[0]["schedule"] | {"learning_rate": 1e30, "warmup": "0 steps"}
    given[1]["schedule"] = given[1]["schedule"] | {"warmup": "0 steps"}
    loop.train(given, str(tmp_path), devices=ONE)
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()]
    assert shown.count("2") == 1 and shown.count("4") == 1  # steps


def test_a_column_with_the_seed_of_the_run_is_each_replicas_own():
    """Others are shared: the replicas are evaluated by one program."""

    def built(seed):
        section = {"few": {"name": "lbfgs", "labels_per_class": 2, "draws": 1, "seed": seed}}
        given = [tiny("flatclr") | {"seed": number, "evaluators": section} for number in (3, 4)]
        return [run.evaluators for run in replicas.program_of(given, ONE).runs]

    one, other = built(0)
    assert one is other
    one, other = built(-1)  # evaluators/test_table.py has what each draws
    assert one is not other


@pytest.mark.run
def test_folders_of_other_runs_are_refused_before_anything_is_trained(whole, tmp_path):
    given, workdir, _ = whole
    begun = tmp_path / "begun"
    shutil.copytree(workdir, begun)
    shutil.rmtree(begun / "checkpoints")  # as a damaged one is to be moved away
    with pytest.raises(ValueError, match="replica_0/checkpoints holds step 4, of another run .* from step 0"):
        loop.train(given, str(begun), quiet=True, devices=ONE)
    with pytest.raises(ValueError, match=r"holds 2 replicas \(replicas.json\), but this is a single run"):
        loop.train(given[0], str(begun), quiet=True, devices=ONE)
    resume.check_folders(replicas.program_of(given, ONE), str(workdir), 4)
    narrow = tiny("flatclr", **{"encoder.width": 0.25, "init.checkpoint": str(workdir / "replica_0")})
    with pytest.raises(ValueError, match="init.checkpoint=.* does not match the encoder of this config"):
        loop.train(narrow, str(tmp_path / "new"), quiet=True, devices=ONE)
    assert not (tmp_path / "new").exists()


@pytest.mark.run
def test_replicas_that_all_diverged_may_start_anew_with_a_lower_rate(tmp_path):
    wild, tame = several(**{"schedule.learning_rate": 1e30}), several()
    with pytest.raises(recorder.Diverged, match="all 2 replicas diverged"):
        loop.train(wild, str(tmp_path), quiet=True, devices=ONE)
    found = loop.train(tame, str(tmp_path), quiet=True, devices=ONE)
    assert [set(result) >= {"evaluations"} for result in found] == [True, True]


@pytest.mark.run
def test_a_report_of_replicas_shows_each_of_them_and_their_mean(whole):
    given, workdir, results = whole
    shown = {"report": given[0]["report"] | {"images": 20, "map": "pca"}}
    page = report.report(given[0] | shown, str(workdir), quiet=True)
    assert page == str(workdir / "report_images-20_map-pca.html")
    text = pathlib.Path(page).read_text()
    assert "replica_0" in text and "replica_1" in text
    both = [result["evaluations"]["trained"] for result in results]
    mean = table.cell(table.mean_of(both)["knn"])
    assert "whole: mean ± sd of 2" in text and f">{mean}<" in text and "±" in mean


@pytest.mark.run
def test_describe_says_what_the_step_of_all_replicas_takes(capsys):
    given = [tiny("flatclr", seed=seed) for seed in (0, 1, 2)]
    found = describe.describe(given, "")
    single = describe.describe(given[0], "")
    printed = capsys.readouterr().out
    assert "replica 2: seed=2" in printed and "compiled step of 3 replicas" in printed
    assert found["memory_mib"] > single["memory_mib"] and found["images_per_second/step"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.batch_size": 16}, r"train\.batch_size is 32 and 16; replicas may differ"),
        (
            {"train.duration": "8 steps"},
            r"train\.duration is .*replicas may differ in the seed and in numbers",
        ),
        ({"log.every": 7}, r"log\.every is .*replicas may differ in the seed and in numbers"),
        (
            {"encoder.width": 0.25},
            r"encoder\.width=0\.25 cannot be a replica of the first run \(their states",
        ),
        (
            {"schedule.warmup": "2 steps"},
            r"schedule\.warmup=2 steps cannot be a replica .*it is not a number",
        ),
        (
            {"optimizer.name": "lars"},
            r"optimizer\.name=lars cannot be a replica of the first run \(it is not a number",
        ),
        (
            {"optimizer.weight_decay": 0.0},
            r"optimizer\.weight_decay=0\.0 cannot be a replica of the first run \(",
        ),
        (
            {"schedule.decay": 0.5},
            "two replicas are the same: set different seeds",
        ),  # not an option of cosine
        ({}, "two replicas are the same"),
    ],
    ids=str,
)
def test_what_is_no_replica_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        replicas.program_of([tiny("flatclr"), tiny("flatclr", **changes)], ONE)
    assert "\n" not in str(raised.value)


def test_what_differs_in_the_seed_alone_has_a_row_of_its_mean():
    differences = [{"temperature.tau": tau, "seed": seed} for tau in (0.1, 0.2) for seed in (0, 1)]
    rows = [{"knn": {"top1": top1}} for top1 in (0.5, 0.7, 0.9)] + [None]  # the last one diverged
    means = table.over_seeds(differences, rows)
    assert list(means) == ["temperature.tau=0.1, mean ± sd of 2"]
    assert means.popitem()[1]["knn"]["top1"] == pytest.approx(0.6)
    for difference in differences:
        del difference["seed"]
    assert table.over_seeds(differences, rows) == {}


def test_untrained_networks_are_a_row_of_their_own():
    def of(differences):
        tables = [{"untrained": {"knn": {"top1": d.get("seed", 3) / 10}}} for d in differences]
        return table.of_runs(differences, tables)

    assert of([{"temperature.tau": 0.1}, {"temperature.tau": 0.2}]) == {"untrained": {"knn": {"top1": 0.3}}}
    (name, row), *others = of([{"seed": seed} for seed in (1, 2, 1, 2)]).items()
    assert name == "untrained, mean ± sd of 2" and not others and row["knn"]["top1"] == pytest.approx(0.15)
    pixels = {"raw pixels": {"knn": {"top1": 0.5}}}
    assert table.of_runs([{"seed": 0}, {"seed": 1}], [{}, pixels]) == pixels
    assert table.of_runs([{}], [pixels]) is pixels  # a run by itself
    seeds = [{"seed": seed} for seed in range(3)]
    drawn = [  # by evaluators with the run's seed
        {"raw pixels": {"few": {"top1": top1, "settings": {"seed": seed}}}}
        for seed, top1 in enumerate((0.5, 0.7, 0.9))
    ]
    found = table.of_runs(seeds, drawn)["raw pixels, mean ± sd of 3"]
    assert found["few"]["top1"] == pytest.approx(0.7)


def test_numbers_with_several_values_are_every_combination_of_them():
    given = [("seed", "0,1"), ("temperature.tau", "0.1, 0.2"), ("evaluate.look", "knn,linear")]
    found = configs.expand("configs/flatclr_digits.py", given)
    assert [(c.seed, c.temperature.options["tau"]) for c in found] == [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)]
    assert {c.evaluate.look for c in found} == {("knn", "linear")}
    eqco = [("margin", "eqco"), ("margin.alpha", "64,256")]  # an option without a default
    assert [c.margin.options["alpha"] for c in configs.expand("configs/digits.py", eqco)] == [64, 256]
    (tuples,) = configs.expand("configs/digits.py", [("projector.widths", "128,64")])  # one value
    assert tuples.projector.options["widths"] == (128, 64)
    with pytest.raises(ValueError, match=r"seed is 'a'"):
        configs.expand("configs/digits.py", [("seed", "0,a")])
    with pytest.raises(ValueError, match=r"no such option"):
        configs.expand("configs/digits.py", [("temperatur.tau", "0.1,0.2")])


@pytest.mark.run
def test_the_command_line_of_replicas(whole):
    given, workdir, _ = whole
    found = main.resolved([], str(workdir), "train")
    assert [one.to_dict() for one in found] == [configs.plain(configs.completed(c)) for c in given]
    with pytest.raises(
        ValueError, match=f"--mode=embed takes one run, not 2 replicas; .*{workdir}/replica_0"
    ):
        main.resolved([], str(workdir), "embed")
    found = main.resolved(["--config=configs/digits.py", "--config.seed=0,1,2"], None, "train")
    names = {main.default_workdir(part) for part in (found, found[:2], found[:1])}
    assert len(names) == 3 and all(name.startswith("runs/") for name in names)
