"""The rules by which numbers judge a claim: on data of known truth a false verdict is as rare as the rules say."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest

from experiments.flatnce import figure_2
from experiments.harness import gates, jobs, judging, ledger, table
from experiments.harness.judging import judge
from experiments.harness.results import Results, above_all, of_extremes
from experiments.harness.table import ALL_LABELS, TEN_LABELS, Claim, Table

DRAWS = 1000
# Of as many draws, each with a chance of 2.5 %, more than this are false once in ten thousand.
MOST = DRAWS * judging.TAIL + 4 * math.sqrt(DRAWS * judging.TAIL)

PLAIN = {  # what the controls of scale gpu are of
    "data.name": "cifar10", "compose.name": "none", "augment.size": 32,
    "encoder.depth": 18, "encoder.width": 1.0, "encoder.stem": "cifar",
}  # fmt: skip


def made(cells, scale="cpu"):
    """Results of cells -> a number a seed; the longest has all seeds."""
    results = Results.__new__(Results)
    seeds = {scale: tuple(range(max(map(len, cells.values()))))}
    runs = {scale: dict.fromkeys(cells)}
    results.table = Table("experiments.paper.made", "", runs=runs, metric={"a": "metrics.a"}, seeds=seeds)
    results.scale = scale
    results.cells = {
        cell: {
            "seeds": {
                str(seed): {"metrics": {"a": value, "w_p50": 0.4}} for seed, value in enumerate(values)
            },
            "arguments": "",
        }
        for cell, values in cells.items()
    }
    return results


def words(claim, draw, draws=DRAWS):
    """How often each verdict is given of numbers that ``draw`` makes."""
    rng = np.random.default_rng(0)
    said = [judge(claim, draw(rng)).word for _ in range(draws)]
    return {word: said.count(word) for word in ("holds", "does not hold", "undecided")}


def read(values):
    return values


def claim_of(by="seeds", expects="above", margin=0.0):
    return Claim("", "", read, expects, margin, by)


def independent(*means, n=3):
    """A sample of three seeds a mean, of unequal spreads."""
    return lambda rng: [list(m + (i + 1) * rng.normal(size=n)) for i, m in enumerate(means)]


def against_one(*means, n=3):
    """The same where all comparisons share a cell."""

    def draw(rng):
        shared = rng.normal(size=n)
        return [list(m + shared - rng.normal(size=n)) for m in means]

    return draw


def correlated(rho, points=6, n=3):
    def draw(rng):
        x, y = rng.normal(size=(2, n, points))
        y = rho * x + math.sqrt(1 - rho**2) * y
        return [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(x, y, strict=True)]

    return draw


def first(draw):
    return lambda rng: draw(rng)[0]


@pytest.mark.parametrize(
    ("claim", "draw", "false"),
    [
        (claim_of(), first(independent(0.0)), ["holds", "does not hold"]),
        (claim_of(expects="below"), first(independent(0.0, n=8)), ["holds", "does not hold"]),
        (claim_of(expects="within", margin=1.0), first(independent(1.0)), ["holds", "does not hold"]),
        (claim_of(expects="within", margin=9.0), first(independent(-9.0)), ["holds", "does not hold"]),
        (claim_of("each"), independent(0.0, 50.0, 50.0), ["holds"]),
        (claim_of("each"), independent(0.0, 0.0, 0.0), ["does not hold"]),
        (claim_of("each"), against_one(0.0, 0.0, 0.0, 0.0), ["holds", "does not hold"]),
        (claim_of("each", "within", 9.0), independent(0.0, 9.0), ["holds"]),
        (claim_of("each", "within", 9.0), against_one(9.0, 9.0, -9.0), ["does not hold"]),
        (claim_of("fisher"), correlated(0.0), ["holds", "does not hold"]),
        (claim_of("fisher", "within", 0.5), correlated(0.5, points=12), ["holds", "does not hold"]),
    ],
)
def test_false_verdicts_are_rare(claim, draw, false):
    said = words(claim, draw)
    assert all(said[word] <= MOST for word in false), said


@pytest.mark.parametrize(
    ("claim", "draw", "word"),
    [
        (claim_of(), first(independent(8.0)), "holds"),
        (claim_of(), first(independent(-8.0)), "does not hold"),
        (claim_of(expects="within", margin=9.0), first(independent(0.0)), "holds"),
        (claim_of("each"), independent(25.0, 25.0), "holds"),
        (claim_of("each"), independent(25.0, -25.0), "does not hold"),
        (claim_of("fisher"), correlated(0.95), "holds"),
    ],
)
def test_a_large_effect_is_seen(claim, draw, word):
    said = words(claim, draw, 200)
    assert said[word] > 150, said


def test_a_claim_is_judged_by_all_seeds_of_its_own_cells():
    cells = {
        ("A", "16"): [3.0, 3.1, 3.3],
        ("B", "16"): [1.0, 1.1, 1.3],
        ("C", "16"): [0.0, 0.1],
        ("D", "16"): [0.0],
    }

    def of(other):
        return Claim("", "", lambda r: r.differences(("A", "16"), (other, "16")))

    said = [judge(of(other), made(cells)) for other in "BCD"]
    assert [one.word for one in said] == ["holds", *2 * ["cannot be judged here"]]
    assert [one.about for one in said] == ["n = 3", "n = 2", "n = 1"]
    assert [one.why for one in said] == ["", "2 of 3 seeds", "one seed is no sample; 1 of 3 seeds"]

    def of_both(read):
        gaps = [read.differences(("A", "16"), (other, "16")) for other in "BC"]
        return [sum(seed) for seed in zip(*gaps, strict=True)]

    assert judge(Claim("", "", of_both), made(cells)).about == "n = 2"
    apart = made(cells)
    apart.cells["C", "16"]["seeds"] = {"7": apart.cells["C", "16"]["seeds"]["0"]}
    assert judge(Claim("", "", of_both), apart).word == "not tested"  # no seed in common


def test_what_has_not_run_is_no_extreme_and_no_rival():
    cells = {("A", "2"): [1.0, 1.1], ("A", "16"): [3.0, 3.1], ("A", "128"): [5.0, 5.3]}
    extremes = Claim("", "", lambda r: of_extremes(r, "A"), "below")
    rivals = Claim("", "", lambda r: above_all(r, ("A", "128"), r.table.runs["cpu"]), by="each")
    assert [judge(claim, made(cells)).word for claim in (extremes, rivals)] == ["holds"] * 2
    del (left := made(cells)).cells["A", "2"]
    assert [judge(claim, left).word for claim in (extremes, rivals)] == ["not tested"] * 2

    def of_all(read):
        return [sum(seed) for seed in zip(*(read.values(*cell).values() for cell in read.cells), strict=True)]

    assert judge(Claim("", "", of_all), made(cells)).word == "holds"
    assert judge(Claim("", "", of_all), left).why == "missing: A, 2"


def test_what_simclr_meets_too_is_not_judged():
    """A gain of small batches alone is not FlatNCE's."""
    claim = next(c for c in figure_2.TABLE.claims if c.evidence is figure_2.eightfold)
    claim = claim._replace(gates=(figure_2.not_simclr_too,))
    cells = {("FlatCLR", "16"): [80.0, 80.1, 80.2], ("SimCLR", "256"): [80.0, 80.2, 80.1]}
    words = {}
    for own in (75.0, 80.0):
        results = made(cells | {("SimCLR", "16"): [own, own + 0.1, own + 0.2]})
        results.table = dataclasses.replace(results.table, metric={figure_2.LINEAR: "metrics.a"})
        words[own] = judge(claim, results).word
    assert words == {75.0: "holds", 80.0: "cannot be judged here"}


def test_false_discoveries_are_as_rare_as_their_rate():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        truth = np.repeat([0.0, 12.0], 10)
        said = [judge(claim_of(), (m + rng.normal(size=4)).tolist()) for m in truth]
        stays = judging.survivors([one.p for one in said])
        shares.append(sum(stays[:10]) / max(1, sum(stays)))
    assert np.mean(shares) <= 0.05
    assert judging.survivors([0.01, 0.04, 0.9]) == [True, False, False] and judging.survivors([]) == []


@pytest.mark.parametrize(
    ("claim", "values", "word"),
    [
        (claim_of(), [1.0, 1.1, 0.9], "holds"),
        (claim_of(), [1.0, 1.0, 1.0], "holds"),
        (claim_of(), [0.0, 0.0, 0.0], "undecided"),
        (claim_of(), [1.0], "cannot be judged here"),
        (claim_of(), [], "not tested"),
        (claim_of("each"), [[1.0, 1.1, 0.9], []], "not tested"),
        (claim_of(), [1.0, math.nan, 1.1], "cannot be judged here"),
        (claim_of("formula"), [0.1, math.inf], "cannot be judged here"),
        (claim_of("formula"), [0.1, 5.0, 90.0], "holds"),
        (claim_of("formula"), [-0.1, 5.0, 90.0], "does not hold"),
        (claim_of("formula"), [0.1], "holds"),
        (claim_of("formula", "within", 1.0), [0.5, -1.5], "does not hold"),
    ],
)
def test_verdict(claim, values, word):
    assert judge(claim, values).word == word


def test_intervals():
    said = judge(claim_of(), [1.0, 2.0, 3.0])
    assert (said.mean, said.high) == pytest.approx((2.0, 2.0 + 4.3027 / 3**0.5), rel=1e-4)
    said = judge(claim_of("fisher"), [0.9, 0.2, 1.0])
    assert -1 < said.low < said.mean < said.high <= 1
    said = judge(claim_of("each"), [[5.0, 5.1, 4.9], [0.5, 0.6, 0.1]])
    assert said.mean == pytest.approx(0.4) and said.about == "weakest of 2, n = 3"
    assert judge(claim_of("formula"), [-1.0, 2.0, 3.0]).about == "range of 3, 2 as claimed"


def gated(gate, values, results):
    return judge(Claim("", "", lambda _: values, gates=(gate,)), results)


def test_a_gate_that_fails_takes_the_verdict_and_says_why(monkeypatch):
    results = made({("A", "16"): [79.9, 80.1], ("B", "16"): [60.0, 60.1], ("C", "16"): [89.0, 89.0]})
    said = gated(gates.lacking("no control"), [-1.0, -1.1], results)
    assert (said.word, said.why, said.p) == ("cannot be judged here", "contrary here; no control", None)
    assert said.mean == pytest.approx(-1.05)  # the numbers are still shown
    assert gated(gates.lacking("no control", ("gpu",)), [1.0, 1.1], results).word == "holds"
    assert gates.ran(("A", "16"))(results, 0.0) == ""
    assert gates.ran(("A", "16"), ("B", "0"))(results, 0.0) == "missing: B, 0"
    monkeypatch.setattr(gates, "levels", lambda *_: {"supervised": 90.0, "baseline": 60.0})
    monkeypatch.setattr(gates, "ALL_LABELS", "a")
    assert "1.0 points" in gates.headroom(results, 1.9)  # C's
    read = results.of_claim([("A", "16"), ("B", "16")])
    assert (
        gates.headroom(read, 1.9) == gates.headroom(read, 99.0) == ""
    )  # in points, however wide the interval
    apart = Claim("", "", lambda r: r.differences(("A", "16"), ("B", "16")), gates=(gates.headroom,))
    assert judge(apart, results).word == "holds"  # asked of the cells that it reads, and not of C
    full = results.of_claim([("C", "16")])
    assert gates.headroom(full, 0.1) and not gates.headroom(results.of_claim([("C", "16")], True), 0.1)
    assert gates.room_to_differ(results.of_claim([("C", "16")], True), 0.1)
    results.scale = "gpu"
    for entry in results.cells.values():
        entry["config"] = PLAIN
    read = results.of_claim([("A", "16"), ("B", "16")])
    assert gates.headroom(read, 1.9) == ""
    for other in ({"data.name": "cifar100"}, {"compose.name": "rand_bit"}, {"encoder.depth": 50}):
        results.cells["C", "16"]["config"] = PLAIN | other  # has no controls there
        assert "no supervised" in gates.headroom(results, 1.0) and gates.headroom(read, 1.9) == ""
    monkeypatch.setattr(gates, "levels", lambda *_: {})
    assert "no supervised" in gates.headroom(read, 1.0)
    results.scale = "paper"
    assert gates.headroom(results, 99.0) == ""


def test_the_regime_is_by_the_median_weight_of_the_column_that_is_judged():
    results = made(
        {("InfoNCE", "16"): [1.0, 2.0], ("InfoNCE", "256"): [0.0, 1.0], ("DCL", "256"): [0.0, 1.0]}
    )
    assert gates.regime("InfoNCE")(results, 0.0) == ""  # 0.4 at the end
    for seed in results.cells["InfoNCE", "256"]["seeds"].values():
        seed["curves"] = {"w_p50": [[1, 2, 3, 4], [0.0, 0.0, 0.6, 0.8]]}  # its last half
    assert "0.70 ± 0.00 at 256" in gates.regime("InfoNCE")(results, 0.0)
    assert gates.regime("InfoNCE", "16")(results, 0.0) == ""
    assert gates.regime("MoCo")(results, 0.0)
    for w, seed in zip((0.499, 0.503), results.cells["InfoNCE", "256"]["seeds"].values(), strict=True):
        seed["curves"] = {"w_p50": [[1, 2], [0.9, w]]}
    assert (
        gates.regime("InfoNCE")(results, 0.0) == ""
    )  # 0.501 on average, and not above one half by its interval


def accuracies(linear, knn):
    """Results of two cells, A and B, judged by all labels and kNN; a pair of percentages a seed."""
    results = made({("A", "16"): [0.0] * len(linear), ("B", "16"): [0.0] * len(linear)})
    results.table = dataclasses.replace(results.table, metric={"linear": ALL_LABELS})
    for number, cell in enumerate(results.cells):
        for seed, entry in results.cells[cell]["seeds"].items():
            entry["evaluations"] = {
                "trained": {
                    "linear": {"top1": linear[int(seed)][number] / 100},
                    "knn": {"top1": knn[int(seed)][number] / 100},
                }
            }
    return results


def test_a_measure_that_decides_is_named_where_the_judged_one_does_not():
    results = accuracies([(52, 50), (49, 51), (50, 50)], [(40, 45), (41, 46.1), (40, 44.9)])
    claim = Claim("", "points", lambda read: read.differences(("A", "16"), ("B", "16")))
    said = judge(claim, results)
    others = ledger.by_others(claim, results, said)
    assert said.word == "undecided" and list(others) == ["kNN"]  # 10 labels did not judge, all labels did
    assert others["kNN"].mean == pytest.approx(-5.0) and others["kNN"].word == "does not hold"
    row = ledger.Row("", "", said, others=others)
    assert row.verdict().endswith("by kNN it does not hold")
    equal = claim._replace(expects="within", margin=9.0)
    (knn,) = ledger.by_others(equal, results, judge(equal, results)).values()
    assert knn.word == "undecided"  # equality wants room, which nobody asked of it
    level = claim._replace(evidence=lambda read: [v - 45 for v in read.values("A", "16").values()])
    assert not ledger.by_others(level, results, judge(level, results))  # 45 % is one of linear accuracy


def test_what_no_interval_contains_is_said_beside_the_number(monkeypatch):
    results = accuracies([(52, 50), (53, 51)], [(1, 1), (1, 1)])
    claim = Claim("", "points", lambda read: read.differences(("A", "16"), ("B", "16")))
    seeds = [100]
    monkeypatch.setattr(
        judging, "choosing", lambda *_: [types.SimpleNamespace(seeds=lambda: tuple(seeds))] if seeds else []
    )
    assert judge(claim, results).about == "n = 2, rates by one seed"
    seeds.append(101)
    assert judge(claim, results).about == "n = 2"
    assert judging.conditions(results.of_claim([("A", "16")]), {TEN_LABELS}) == ["fixed draws"]
    results.cells["A", "16"]["config"] = {"evaluators.few_labels.seed": -1}
    assert judging.conditions(results.of_claim([("A", "16")]), {TEN_LABELS}) == []


def test_a_ceiling_forges_no_effect_and_does_forge_equality(monkeypatch):
    monkeypatch.setattr(gates, "levels", lambda *_: {"supervised": 52.5, "baseline": 10.0})
    results = accuracies([(52, 50), (52.2, 50), (52.1, 50)], [(1, 1)] * 3)
    apart = Claim("", "", lambda read: read.differences(("A", "16"), ("B", "16")), gates=(gates.headroom,))
    assert judge(apart, results).word == "holds"
    assert judge(apart._replace(expects="below"), results).word == "does not hold"
    for forged in (
        apart._replace(expects="within", margin=3.0),
        apart._replace(gates=(gates.room_to_differ,)),
        apart._replace(evidence=lambda read: [d - 2 for d in apart.evidence(read)]),  # undecided
    ):
        assert "headroom: 0.4 points" in judge(forged, results).why
    results.scale, runs = "small_mnist", {"small_mnist": dict.fromkeys(results.cells)}
    results.table = dataclasses.replace(results.table, runs=runs, seeds={"small_mnist": (0, 1, 2)})
    assert "headroom" in judge(apart, results).why  # all labels, where 10 a class judge


def test_gradients_of_several_rates_are_not_compared():
    results = made({("A", "16"): [1.0], ("B", "16"): [1.0]})
    for rate, entry in zip((0.1, 0.3), results.cells.values(), strict=True):
        entry["config"] = {gates.RATE: rate}
    assert gates.one_rate(results, 0.0) == "rates: the cells were trained at 0.1, 0.3"
    assert gates.one_rate(results.of_claim([("B", "16")]), 0.0) == ""


@pytest.mark.parametrize(
    ("tried", "chosen", "why"),
    [
        ((0.1, 0.3, 1.0), 0.3, ""),
        ((0.1, 0.3, 1.0), 1.0, "at the edge"),
        ((0.1, 0.3), 0.3, "not chosen for 1 of 1"),
        ((), None, "not chosen for 1 of 1"),
    ],
)
def test_a_rate_is_chosen_inside_of_what_was_tried(tried, chosen, why, monkeypatch):
    points = [types.SimpleNamespace(point=((gates.RATE, rate),)) for rate in tried]
    monkeypatch.setattr(gates, "choosing", lambda *_: points)
    monkeypatch.setattr(gates, "choose", lambda *_: ((gates.RATE, chosen),) if chosen else ())
    results = made({("A", "16"): [1.0]})
    found = gates.tuned(results, 0.0)
    assert why in found and bool(found) == bool(why)
    assert gates.tuned_in("A")(results, 0.0) == found and gates.tuned_in("B")(results, 0.0) == ""
    results.table = dataclasses.replace(results.table, published_rates=(results.scale,))
    assert gates.tuned(results, 0.0) == ""


@pytest.mark.parametrize(("half", "why"), [(1.0, "A, 16 (85.0 against 88.0)"), (4.0, "")])
def test_a_rate_that_all_labels_chose_is_asked_of_ten(half, why, monkeypatch):
    """It may be the best by all labels, where nothing differs, and the worst by what judges."""

    def job(rate, few):
        found = {"evaluations": {"trained": {"few_labels": {"top1": few}}}}
        return types.SimpleNamespace(
            point=((gates.RATE, rate),), seeds=lambda: [100], result=lambda seed: found
        )

    jobs = [job(0.1, 0.88), job(0.3, 0.85), job(1.0, 0.8)]
    monkeypatch.setattr(gates, "choosing", lambda *_: jobs)
    monkeypatch.setattr(gates, "choose", lambda *_: jobs[1].point)
    results = made({("A", "16"): [1.0]})
    assert gates.tuned(results, half) == ""
    results.few = True
    found = gates.tuned(results, half)
    assert found.endswith(why) and bool(found) == bool(why)


def test_the_levels_of_digits_are_those_of_the_committed_runs():
    known = gates.levels("cpu")
    file = gates.ROOT / "experiments/digits/results/methods/supervised.json"
    seeds = json.loads(file.read_text())["seeds"].values()
    assert known["supervised"] == pytest.approx(100 * np.mean([seed["trained"]["linear"] for seed in seeds]))
    assert known["baseline"] < known["supervised"] and gates.levels("gpu") == {}


def test_a_sweep_chooses_by_a_seed_that_judges_nothing():
    for one in map(table.table_of, table.all_tables()):
        assert all(seed < jobs.CHOOSING for scale in one.runs for seed in one.seeds_at(scale))
