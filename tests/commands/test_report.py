"""The page of a run: self-contained, escaped, and each number the one in the files."""

import base64
import dataclasses
import html.parser
import io
import json
import pathlib
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from contrastive_jax import config as configs
from contrastive_jax import data
from contrastive_jax import workdir as workdirs
from contrastive_jax.commands import evaluate, report
from contrastive_jax.config import sections
from contrastive_jax.data import compose
from contrastive_jax.training import run as runs
from contrastive_jax.training.step import init_state
from contrastive_jax.workdir import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {"images": 40, "layer": "pooled", "map": "pca", "queries": 3, "neighbours": 4}
EMPTY = {"meta", "img", "path", "use", "br", "rect", "line", "circle", "image"}


class Page(html.parser.HTMLParser):
    """Tags that are opened and closed, what is fetched, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.fetched, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.fetched += [
            v for k, v in attrs if k in ("src", "href", "data", "action") and not v.startswith("#")
        ]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def make_run(path, seed=0, tau=0.1, finished=True, trained=True):
    """A workdir as a run leaves it, but for the training: an untrained encoder and made-up numbers."""
    config = configs.load(str(ROOT / "configs/digits.py:method=simclr,scale=smoke"))
    config.augment = {"preset": "none", "size": 8}
    config.seed, config.temperature.tau = seed, tau
    config = configs.plain(configs.complete(config))
    workdirs.write_config(path, config, "")
    with workdirs.Logbook(path, tensorboard=False) as book:
        for step in (1, 2, 3):
            c = np.linspace(-3 * step, 1, 9)
            book.write(step, step / 44, {"loss": 3.0 / step, "w_p05": 0.1, "w_p50": 0.2, "w_p95": 0.5,
                "gradient_snr": float("nan") if step == 1 else 0.25, "query_gradient_norm": 2.0,
                "query_gradient_norm_std": 0.5, "c_quantiles": c})  # fmt: skip
            book.write(step, step / 44, {"eval/knn_top1": 0.25 * step})
    if finished:
        evaluations = {
            "trained": {
                "linear": {"top1": 0.8765, "protocol": "logistic <regression> & co", "settings": {}},
                "geometry": {"semantic_sensitivity": 0.31416, "protocol": "geometry", "settings": {}},
                "broken": {"failed": "no room for <b>"},
            },
            "raw pixels": {"linear": {"top1": 0.9}, "geometry": {"left_out": "pixels"}, "broken": {"failed": "x"}},
        }  # fmt: skip
        alarm = {
            "alarm": "collapse",
            "sentence": "collapse: <script>alert(1)</script>",
            "first_step": 1,
            "last_step": 2,
        }
        result = {
            "step": 3,
            "seconds": 12.5,
            "evaluations": evaluations,
            "alarms": [alarm],
            "git_commit": "a" * 40,
        }
        workdirs.write_json(path / "result.json", result)
    if trained:
        run = runs.prepare(config, jax.devices()[:1])
        state = jax.tree.map(jax.numpy.asarray, init_state(run.recipe, seed))
        with checkpoint.Checkpoints(path / "checkpoints") as saved:
            saved.save(3, state, {"config": config, "channels": run.source.train.shape[2]})
    return path


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "first <b>&amp;")


def of(workdir, **settings):
    file = report.report({"report": SETTINGS | settings}, str(workdir), quiet=True)
    text = pathlib.Path(file).read_text()
    return text, Page(text)


def test_the_page_of_a_run_is_whole_escaped_and_needs_nothing_else(workdir):
    text, page = of(workdir)
    assert not page.open and "first <b>&amp;" in page.text  # the name as it is, not as markup
    assert "<script" not in text and "<b>" not in text and "collapse: <script>alert(1)</script>" in page.text
    assert all(link.startswith("data:image/png;base64,") for link in page.fetched) and page.fetched
    assert not re.search(r"url\(\s*['\"]?(?!#)", text) and "@import" not in text and "<link" not in text
    assert "prefers-color-scheme: dark" in text and report.INK not in text and "currentColor" in text
    for words in (
        "config digits_simclr; data digits; loss info_nce; last record 20",
        "87.6",
        "0.3142",
        "failed",
        "no room for <b>",
        "logistic <regression> & co",
        "12.5",
        "aaaaaaaaaa",
    ):
        assert words in page.text, words
    assert (
        "temperature.tau" in page.text and "39" not in page.words
    )  # 40 images, queries and neighbours among them
    assert sum(tag == "svg" for tag, _ in page.tags) == 4  # curves, diagnostics, histogram, map
    for title in (
        "loss",
        "knn: Top-1",
        "gradient SNR, mean over parameters",
        "W: 5, 50, 95 % of the queries",
    ):
        assert title in page.text, title
    assert "InfoNCE" not in page.text  # no empty panel for what was not logged


def test_the_nearest_neighbours_are_scikit_learns_and_their_pictures_the_images(workdir):
    settings = configs.saved_settings(configs.load(str(workdir)))
    seen = report.features_of(workdir, settings, report.check(sections.Report(**SETTINGS)))
    queries = np.random.default_rng(0).permutation(40)[:3]
    found = report.neighbours(seen.features, queries, 4)
    unit = seen.features / np.linalg.norm(seen.features, axis=1, keepdims=True)
    theirs = NearestNeighbors(n_neighbors=5, metric="cosine").fit(unit)
    distance, index = theirs.kneighbors(unit[queries])
    ours = 1 - np.sum(unit[queries][:, None] * unit[found], axis=2)
    np.testing.assert_allclose(ours, distance[:, 1:], atol=1e-5)
    assert all(len(set(row)) == 4 for row in found.tolist()) and not (found == queries[:, None]).any()
    _, page = of(workdir)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 3 * 5 and [i["class"] for i in images].count("query") == 3
    source = runs.source_of(settings)
    rows = np.sort(np.random.default_rng(0).permutation(len(source.test))[:40])
    for tag, position in zip(
        images, np.concatenate([queries[:, None], found], axis=1).reshape(-1), strict=True
    ):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(tag["src"].partition(",")[2]))))
        np.testing.assert_array_equal(shown[..., 0], source.test.pictures(rows[[position]])[0, ..., 0])
        assert tag["title"] == source.classes[source.test.label[rows[position]]]


def test_several_runs_side_by_side_show_what_differs(workdir, tmp_path):
    other = make_run(tmp_path / "second", seed=1, tau=0.5)
    file = report.report({"report": SETTINGS}, str(workdir), quiet=True)
    own = pathlib.Path(file).read_text()
    _, page = of(f"{workdir},{other}")
    assert pathlib.Path(file).read_text() == own and "second" in page.text
    before_all = page.text.partition("All ")[0]
    assert "Options that differ between the runs" in page.text and "temperature.tau 0.1 0.5" in before_all
    assert "seed 0 1" in before_all and "optimizer.name" not in before_all
    assert page.text.count("87.6") == 2 and page.text.count("90.0") == 1  # one set's raw pixels
    assert sum(tag == "svg" for tag, _ in page.tags) == 6


def test_a_run_under_way_says_what_it_has_not(tmp_path):
    path = make_run(tmp_path / "young", finished=False, trained=False)
    _, page = of(path)
    assert "No evaluations." in page.text and "no result.json yet" in page.text
    assert "checkpoint" in page.text.partition("Embedding")[2] and not page.fetched
    (path / "metrics.jsonl").unlink()
    assert "No metrics." in of(path)[1].text


def test_numbers_that_are_not_finite_are_shown_and_a_divergence_is_what_ended_the_run(tmp_path):
    result = workdirs.read_json(make_run(tmp_path) / "result.json")
    trained = result["evaluations"]["trained"]
    trained["linear"]["top1"], trained["geometry"] = float("nan"), {"rank": 7, "spread": float("inf")}
    workdirs.write_json(tmp_path / "result.json", result)
    assert {"nan", "7", "inf"} <= set(of(tmp_path)[1].text.split())
    workdirs.write_json(tmp_path / "diverged.json", {"diverged": "the loss is not finite"})
    assert "diverged: the loss is not finite" in of(tmp_path)[1].text  # it went on from that result


def test_a_run_that_was_interrupted_while_it_was_judged_is_not_finished(tmp_path):
    path = make_run(tmp_path / "trained", trained=False)
    assert "state finished" in of(path)[1].text
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"evaluations": {}}))
    assert "trained, not evaluated" in of(path)[1].text


def test_what_evaluate_added_is_beside_the_runs_own_or_says_what_it_is_of(tmp_path):
    path = make_run(tmp_path / "run")
    config = configs.plain(configs.load(str(path)))
    config["evaluators"] = {"nearest": {"name": "knn", "k": 1}}
    config["evaluate"] |= {"rows": ["trained"]}
    evaluate.evaluate(config, str(path), quiet=True)
    own, result = (json.loads((path / f"{name}.json").read_text()) for name in ("config", "result"))
    own = configs.saved_settings(own)
    later = json.loads((path / "evaluation.json").read_text())
    rows = report.judged(own, result, later)[""]
    assert rows["trained"] == result["evaluations"]["trained"] | later["results"]["trained"]
    assert rows["raw pixels"] == result["evaluations"]["raw pixels"] and "nearest" in of(path)[1].words
    assert report.judged(own, result | {"evaluations": {}}, later) == {"": later["results"]}
    assert report.judged(own, result, {}) == {"": result["evaluations"]} and report.judged(own, {}, {}) == {}
    unsaid = {
        name: value for name, value in later.items() if name not in ("data", "compose", "images", "size")
    }
    assert report.judged(own, result, unsaid) == {"": rows}  # a file of before it said its images
    other = {"top1": 0.5, "protocol": "another C"}
    for change, heading in (
        ({"data": {"name": "cifar100"}, "images": "0" * 8}, "images of cifar100"),
        ({"data": {"name": "folder", "dir": "photos"}, "images": "0" * 8}, "images of photos"),
        ({"notes": ["data has 269 training images"]}, "images changed since the training"),
        ({"step": 2}, "step 2"),
        ({"config": "0" * 8, "checkpoint": "runs/other"}, "encoder of runs/other"),
        ({"size": 12}, "at 12 pixels"),
        ({"results": {"trained": {"linear": other}}}, "other options"),
    ):
        changed = later | change
        expected = {"": result["evaluations"], f"evaluation.json: {heading}": changed["results"]}
        assert report.judged(own, result, changed) == expected
    column = result["evaluations"]["trained"]["linear"]
    drawn = [column | {"settings": {"seed": seed}} for seed in (0, 1)]
    own_rows, again = ({"trained": {"linear": one}} for one in drawn)
    found = report.judged(own, result | {"evaluations": own_rows}, later | {"results": again})
    assert found == {"": own_rows, "evaluation.json: other options": again}
    (path / "evaluation.json").write_text(
        json.dumps(later | {"data": {"name": "cifar100"}, "images": "0" * 8})
    )
    text = of(path)[1].text
    assert "Top-1, %; evaluation.json: images of cifar100 nearest" in text and "87.6" in text


def seen(count, classes, width=3):
    """The images of a run, in features by chance, a class each."""
    random = np.random.default_rng(0)
    found = report.Seen(
        1, "test", random.normal(size=(count, width)), np.arange(count) % len(classes), classes,
        lambda positions: np.zeros((len(positions), 2, 2, 3), np.uint8),
    )  # fmt: skip
    return types.SimpleNamespace(seen=found, colour="#000000")


def test_an_image_is_no_neighbour_of_its_own_where_there_are_few():
    given = sections.Report(queries=4, neighbours=7, map="pca")
    lines, said = report.nearest(seen(4, ("a", "b", "c", "d")), given)
    assert np.shape(lines) == (4, 4, 3) and "among the other 3; 0% of them" in said
    assert report.nearest(seen(1, ("a",)), given) == ([], "No neighbours: there is only one test image.")


def test_a_map_shows_every_class_or_says_why_there_is_none():
    given = sections.Report(map="pca")
    drawn, _ = report.embedding_map(seen(6, ("_b", "$^$")), given)
    assert "_b" in drawn and "$^$" in drawn
    for one in (seen(1, ("a",)), seen(6, ("a",), width=1)):
        drawn, why = report.embedding_map(one, given)
        assert not drawn and "No map" in why


def test_the_maps_say_what_they_are():
    random = np.random.default_rng(0).normal(size=(30, 5))
    points, how = report.plane(random, "pca")
    fit = PCA(2).fit(random / np.linalg.norm(random, axis=1, keepdims=True))
    assert f"{fit.explained_variance_ratio_.sum():.0%} of the variance" in how
    np.testing.assert_allclose(points.var(axis=0, ddof=1), fit.explained_variance_, rtol=1e-6)
    points, how = report.plane(random, "tsne")
    assert points.shape == (30, 2) and "perplexity 9.67, seed 0" in how
    np.testing.assert_array_equal(points, report.plane(random, "tsne")[0])


@pytest.mark.parametrize(
    ("leaf", "sentence"),
    [
        ({"images": 9}, "report.images is 9"),
        ({"neighbours": 40}, "report.neighbours is 40; with report.images=40"),
        ({"map": "umap"}, "report.map is 'umap'"),
        ({"queries": -1}, "report.queries is -1"),
    ],
)
def test_wrong_options_are_one_sentence(leaf, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        report.report({"report": SETTINGS | leaf}, "unused", quiet=True)


def test_a_layer_that_there_is_not_leaves_the_page_as_it_is(tmp_path):
    path = make_run(tmp_path / "run, of commas")
    page = pathlib.Path(report.report({"report": SETTINGS}, str(path), quiet=True))
    before = page.read_bytes()
    with pytest.raises(ValueError, match="report.layer is 'projection1'; .* pooled, projection_1"):
        report.report({"report": SETTINGS | {"layer": "projection1"}}, str(path), quiet=True)
    assert page.read_bytes() == before


def test_no_workdir_at_all_is_one_sentence():
    with pytest.raises(ValueError, match="--workdir=',' names no run"):
        report.report({"report": SETTINGS}, ",", quiet=True)


def test_the_map_shows_images_of_one_label_where_the_set_has_some():
    """An image of several digits has no colour; the single digits that an encoder is judged on have."""
    digits = data.Split(np.zeros((6, 4, 4, 1), np.uint8), np.arange(6) % 3)
    plain = data.Source("some", digits, digits[:4], ("0", "1", "2"))
    made = compose.multi_digits(plain, None, count=2, side=12)
    name, split = report.shown(made)
    assert name == "test" and split.label_shape == () != made.test.label_shape and len(split) == 4
    assert report.shown(plain)[1] is plain.test
    assert report.shown(dataclasses.replace(plain, test=None)) == ("training", digits)


def test_names_are_the_shortest_ends_that_differ():
    paths = [pathlib.Path(p) for p in ("/a/seed_0/run", "/a/seed_1/run")]
    assert report.names(paths) == ["seed_0/run", "seed_1/run"] and report.names(paths[:1]) == ["run"]


@pytest.mark.run
def test_the_command_needs_no_config(workdir):
    done = subprocess.run(
        [sys.executable, "-m", "contrastive_jax.main", "--mode=report", f"--workdir={workdir}"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        "report.html" in done.stdout and "t-SNE of cosine distances" in (workdir / "report.html").read_text()
    )


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not hold a run"):
        report.report({"report": SETTINGS}, str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "3", '{"evaluations": 3}', '{"step": "x", "device": {}}',
    '{"evaluations": {"trained": {"linear": {"top1": "high", "top1_std": []}}}, "notes": 3, "alarms": {"a": 1}}',
    '{"evaluations": {"trained": {"knn": {"top1": 0.5, "protocol": ["x"]}, "b": {"failed": {}, "left_out": 3}}}}',
    '{"notes": [1], "git_commit": 5, "seconds": "long", "alarms": [3, {}], "device": []}'])  # fmt: skip
def test_a_broken_or_odd_result_ends_no_report(text, tmp_path):
    path = make_run(tmp_path / "run", trained=False)
    for name in ("result.json", "evaluation.json"):
        (path / name).write_text(text)
    _, page = of(path)
    assert "loss" in page.text


@pytest.mark.parametrize(
    "record",
    [
        {"c_quantiles": 3},
        {"c_quantiles": []},
        {"c_quantiles": ["a", "b"]},
        {"c_quantiles": [None, None]},
        {"c_quantiles": [10**400, 1, 2]},
        {"loss": "x"},
        {"loss": [1, 2]},
        {"loss": True},
        {"loss": None},
        {"w_p50": {}},
        {"epoch": "NaN"},
        {"alarm/collapse": 1, "loss": 1.0},
        {"tau": 0},
        {"gradient_norm": -1.0},
        {"eval/knn_top1": "a"},
    ],
)
def test_odd_metrics_end_no_report(record, tmp_path):
    path = make_run(tmp_path / "run", trained=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write(
            json.dumps({"step": 30} | record) + "\n" + json.dumps({"step": 31, "epoch": 2.0} | record) + "\n"
        )
    of(path)
    assert workdirs.plot_curves(path)


def test_a_comparison_leaves_the_runs_own_page_alone():
    usual = sections.Report()
    assert report.file_name(["a"], usual) == "report.html"
    assert report.file_name(["a", "b", "c d"], usual) == "report_with_b_c-d.html"
    assert report.file_name(["a", "b"], usual, first=True) == "report_a_with_b.html"
    long = report.file_name(["a", *map(str, range(100))], usual)
    assert len(long) < 160 and long != report.file_name(["a", *map(str, range(101))], usual)


def test_a_page_with_other_options_leaves_the_page_before_alone():
    other = sections.Report(map="pca", layer="projection_1")
    assert report.file_name(["a"], other) == "report_layer-projection_1_map-pca.html"
    assert (
        report.file_name(["a", "b"], other, first=True) == "report_a_with_b_layer-projection_1_map-pca.html"
    )
    every = {"images": 20, "layer": "x", "map": "pca", "queries": 3, "neighbours": 2}
    one_changed = [report.file_name(["a"], sections.Report(**{name: every[name]})) for name in every]
    assert every.keys() == vars(sections.Report()).keys() and len({"report.html", *one_changed}) == 6


def test_a_run_is_shown_once(workdir, tmp_path):
    (tmp_path / "link").symlink_to(workdir)
    for twice in (f"{workdir},{workdir}", f"{workdir},{tmp_path}/link"):
        with pytest.raises(ValueError, match="names the run .* twice; name each run once"):
            report.report(configs.base(), twice)
