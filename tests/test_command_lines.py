"""Command lines as people type them: taken, or refused in one line; never a stack trace."""

import pytest

from experiments.reliability import lines


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed else ()) for seed in range(8)]
)
def test_any_line_is_taken_or_refused_in_one_line(seed):
    counts, failures = lines.search(60 if seed == 0 else 700, seed)
    assert not failures, "\n".join(failures.values())
    assert counts["taken"] and counts["refused"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--config=digits:scale=smoke", "--workdir="], "--workdir="),
        (["--config=digits:scale=smoke", "--workdir= "], "--workdir= "),
        (["--config=digits:scale=smoke", "--workdira\nb"], "--workdira b"),
        (["--config=digits:scale=smoke", "--work\x1b[2J"], r"--work\x1b[2J"),
        (["--config=digits:scale=smoke", "--config.=1"], "--config."),
        (["--config=digits:scale=smoke", "--config..seed=1"], "--config..seed"),
        (["--config=digits:scale=smoke", "--config.augment.=1"], "--config.augment."),
        (["--config="], "--config"),
        (["--config=digits:scale=smoke", "--config.augment=byol"], "augment.mean"),
        (["--config=digits:scale=smoke", "--config.augment.mean=(0,0,0)", "--config.augment.std=(1,1,1)"],
         "augment.mean"),
        (["--config=digits:scale=smoke", "--config.seed=" + "9" * 5000], "seed"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_option(words, names):
    with lines.place():
        kind, message = lines.attempt(words)
    assert kind == "refused" and names in message and len(message) < 3000, message
