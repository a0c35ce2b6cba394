"""Check the losses of other libraries on a CPU: ``python -m experiments.check.libraries run``, then ``render``.

``run`` checks what is installed and is not yet in ``results/libraries.json``, a loss at a time; ``render`` writes the
table of ``README.md``. Libraries: optax, lightly, pytorch-metric-learning, open_clip_torch, sentence-transformers,
info-nce-pytorch, libauc, solo-learn; with PyTorch. No weights are loaded.
"""

import argparse
import importlib.metadata
import json
import pathlib

FOLDER = pathlib.Path(__file__).parent
KEPT, PAGE = FOLDER / "results" / "libraries.json", FOLDER / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def run(only: str, checks: str) -> None:
    """Check every loss that is not kept yet or whose name contains a text, or repeat some checks of kept ones."""
    import torch

    from contrastive_jax import conformance
    from experiments.check import adapters

    torch.set_num_threads(1)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for library, losses in adapters.LIBRARIES.items():
        for function, loss in losses.items():
            name = function.__name__
            if name in kept and not only and not checks or only not in name:
                continue
            try:
                version = importlib.metadata.version(library)
            except importlib.metadata.PackageNotFoundError:
                continue
            framework, some = "jax" if library == "optax" else "torch", [c for c in checks.split(",") if c]
            report = conformance.check(function, loss, framework=framework, only=some)
            if some:
                found = {check["name"]: check for check in report.as_json()["checks"]}
                all_checks = [found.get(check["name"], check) for check in kept[name]["checks"]]
                passed = all(check["status"] != "failed" for check in all_checks)
                kept[name] |= {"checks": all_checks, "passed": passed}
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
                continue
            versions = {"torch": torch.__version__} if library != "optax" else {}
            kept[name] = {"library": library, "version": version, **versions, **report.as_json()}
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
            print(name, "passed" if report.passed else [r.name for r in report.failures], flush=True)


def table(kept: dict) -> str:
    """Return the table of results in Markdown."""
    lines = [
        "| library | loss | checked as | passed | failed | convention |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in kept.items():
        statuses = [check["status"] for check in found["checks"]]
        failed = ", ".join(f"`{check['name']}`" for check in found["checks"] if check["status"] == "failed")
        lines.append(
            f"| {found['library']} {found['version']} | `{name}` | {found['as']} | {statuses.count('passed')} of"
            f" {len(statuses) - statuses.count('not applicable')} | {failed or 'none'} |"
            f" {found['convention'].removeprefix('your loss is ')} |"
        )
    return "\n".join(lines)


def rendered(text: str, kept: dict) -> str:
    """Return the page with the table of the kept results."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(kept)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("run", "render"))
    parser.add_argument("--only", default="", help="losses whose name contains this text")
    parser.add_argument("--checks", default="", help="checks of kept losses to repeat, A,B")
    arguments = parser.parse_args()
    if arguments.verb == "run":
        run(arguments.only, arguments.checks)
    else:
        PAGE.write_text(rendered(PAGE.read_text(), json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
