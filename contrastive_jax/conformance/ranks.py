"""Runs of a function on several ranks: PyTorch processes with gloo on 127.0.0.1, or emulated JAX devices."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from contrastive_jax.conformance import inputs
from contrastive_jax.conformance.results import Failed, NotApplicable
from contrastive_jax.conformance.session import Session, error

SECONDS = 150.0  # time limit of all ranks together, including imports
START = (
    "import json, sys; request = json.load(sys.stdin); sys.path[:] = request['path'];"
    " from contrastive_jax.conformance import rank; rank.main(request)"
)
CLOSE = 2e-3


def address_of(function: Any) -> str:
    """Return ``module:function`` if another process can import the function, otherwise an empty string."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function and module != "__main__" else ""


def run(session: Session) -> list[dict]:
    """Run the ranks and return the results of each process, see :mod:`contrastive_jax.conformance.rank`.

    Raises:
      NotApplicable: the function is a NumPy function, or another process cannot import it.
      Failed: a rank raised an error, or did not end with a result.
    """
    if session.bridge.framework == "numpy":
        raise NotApplicable("a NumPy function has no ranks")
    address = address_of(session.bridge.function)
    if not address:
        raise NotApplicable("other processes cannot import it: define it at the top level of a module")
    argument = None
    if session.has_temperature:
        tau = session.working_tau
        argument = session.convention.temperature.to_argument(tau) if session.convention else tau
    number = session.ranks
    batch = inputs.arrays(session.spec, (3 * number, 4), 1, unit=session.unit)
    request = {
        "path": [os.path.abspath(p) for p in sys.path if p] + ([os.getcwd()] if "" in sys.path else []),
        "function": address,
        "arrays": [x.tolist() for x in batch],
        "split": len(batch) if session.spec.kind != "queue" else 2,
        "ranks": number,
        "parameter": session.bridge.temperature,
        "argument": argument,
        "options": session.bridge.options,
        "framework": session.bridge.framework,
        "axis_name": "axis_name" in session.bridge.names,
    }
    processes = number if session.bridge.framework == "torch" else 1
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    environment["JAX_NUM_CPU_DEVICES"] = str(number)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        started, complaints = [], []  # files, as a function may print more than a pipe holds
        try:
            for rank in range(processes):
                files = {name: os.path.join(folder, f"{name}{rank}") for name in ("answer", "complaint")}
                asked = json.dumps(
                    request
                    | {"rank": rank, "store": os.path.join(folder, "store"), "answer": files["answer"]}
                )
                complaint = stack.enter_context(open(files["complaint"], "w+", errors="replace"))
                complaints.append(complaint)
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", START],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=complaint,
                    text=True,
                    env=environment,
                )
                started.append(process)
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended: see its status
                    process.stdin.write(asked)
            end = time.monotonic() + SECONDS
            for process in started:
                process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"the ranks did not end within {SECONDS:.0f} s: one waits for another") from None
        finally:
            for process in started:
                process.kill()
                process.wait()
        for process, complaint in zip(started, complaints, strict=True):
            complaint.seek(0)
            said = complaint.read().splitlines()
            lines = [line for line in said if re.match(r"[\w.]*(Error|Exception)\b", line)]
            if process.returncode:
                raise Failed(f"a rank raised {(lines or said or ['no message'])[-1][:200]}")
        answers = [pathlib.Path(folder, f"answer{rank}") for rank in range(processes)]
        if not all(answer.is_file() for answer in answers):
            raise Failed("the function ended a rank's program")
        return [json.loads(answer.read_text()) for answer in answers]


def compare(session: Session) -> tuple[float, str]:
    """Compare the mean over ranks of value and gradient with the whole batch on one rank."""
    answers, number = run(session), session.ranks
    gradient = np.mean([answer["gradient"] for answer in answers], axis=0)
    value = float(np.mean([answer["value"] for answer in answers]))
    whole, whole_value = np.asarray(answers[0]["whole_gradient"]), answers[0]["whole_value"]
    wrong, wrong_value = error(gradient, whole), error(value, whole_value)
    if not (np.isfinite(gradient).all() and np.isfinite([value, whole_value]).all()):
        raise Failed("value or gradient is not finite on plain rows")
    if max(wrong, wrong_value) < CLOSE:
        return wrong, f"{number} ranks ({session.bridge.framework})"
    if "part_gradient" in answers[0]:
        apart = np.mean([answer["part_gradient"] for answer in answers], axis=0)
        if error(gradient, apart) < CLOSE:
            raise NotApplicable("it does not gather: the negatives of a rank are its own rows")
        for factor, word in ((number, "multiplied"), (1.0 / number, "divided")):
            if error(gradient, factor * apart) < CLOSE:
                raise Failed(
                    f"nothing is gathered, and the gradient is {word} by the number of ranks", factor
                )
    if not np.any(whole):
        raise Failed("the gradient of the whole batch on one rank is 0", wrong)
    by_value = value / whole_value if whole_value else np.nan
    if wrong < CLOSE and abs(by_value / number - 1) < CLOSE:
        return wrong, f"the gradient equals that of one rank; the value is {number} x (it undoes DDP's mean)"
    ratio = float(np.ravel(gradient) @ np.ravel(whole) / (np.ravel(whole) @ np.ravel(whole)))
    if error(gradient, ratio * whole) < CLOSE:
        if abs(ratio * number - 1) < CLOSE and abs(by_value * number - 1) < CLOSE:
            return (
                wrong,
                "a sum over queries: averaging over ranks divides value and gradient by their number",
            )
        named = {1.0 / number: f"1 / {number}", float(number): f"{number}", 1.0: "1"}
        word = next(
            (text for factor, text in named.items() if abs(ratio / factor - 1) < CLOSE), f"{ratio:.4g}"
        )
        if word == "1":
            raise Failed(
                f"the gradient is correct, but the value is {by_value:.4g} x that of one rank", wrong_value
            )
        kind = "divided by" if ratio < 1 else "multiplied by"
        raise Failed(
            f"the averaged gradient is {word} x that of one rank: {kind} the number of ranks"
            + (" (the gather's backward pass does not sum over ranks)" if ratio < 1 else ""),
            ratio,
        )
    lengths = np.linalg.norm(gradient) * np.linalg.norm(whole)
    cosine = float(np.ravel(gradient) @ np.ravel(whole) / lengths) if lengths else 0.0
    if wrong_value < CLOSE and session.name != "flatnce":  # FlatNCE's value is constant
        raise Failed(
            (
                f"the value is correct, but the gradient is not (cosine {cosine:.3f}): gathered rows are"
                " detached"
            ),
            wrong,
        )
    raise Failed(
        f"value and gradient differ from one rank's (cosine {cosine:.3f}): positives of rank r start at row r x N; or"
        " a sum or mean is over a rank's own rows",
        max(wrong, wrong_value),
    )
