"""The fast tests on several versions of Python and jax, each in an environment of its own.

    python -m experiments.reliability.versions run    # all of ENVIRONMENTS; results/versions.json, versions.md
    python -m experiments.reliability.versions run --only 3.12:0.11 --python ~/python3.12/bin/python --folder ~/made
    python -m experiments.reliability.versions run --tests tests/losses    # some tests: printed, kept nowhere
    python -m experiments.reliability.versions render

An environment is a virtual one with this tree, its extra ``test``, and the newest release of jax and of everything
else that fits; it is kept in the folder and used again as it is: take it away for newer releases. The table goes into
``results/versions.md`` and into the header of ``constraints.txt``; the numbers of an environment that is not run
again stay.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).parent / "results"
CONSTRAINTS = ROOT / "constraints.txt"
ENVIRONMENTS = ("3.11:0.10", "3.12:0.11", "3.13:0.12")  # Python:jax; each release of both once
CACHE = pathlib.Path(
    os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"), "contrastive_jax", "versions"
)
PACKAGES = ("jax", "flax", "orbax-checkpoint", "numpy")
HEADER = "# Passed on a CPU: "
ASK = f"""
import importlib.metadata, json, platform
found = {{name: importlib.metadata.version(name) for name in {PACKAGES!r}}}
print(json.dumps({{"python": platform.python_version()}} | found))
"""


def interpreters(asked: list[str], given: list[str]) -> dict[str, str]:
    """Find a path for each release of Python in ``asked``: of ``given``, or from PATH.

    Raises SystemExit, with a sentence, where there is none.
    """
    found = {}
    for path in given:
        release = _release(path)
        if release is None:
            raise SystemExit(f"--python {path}: it does not run as an interpreter of Python.")
        found[release] = path
    for release in asked:
        path = found.get(release) or shutil.which(f"python{release}")
        if path is None or _release(path) != release:  # what a version manager puts on PATH need not run
            raise SystemExit(
                f"Python {release} is not on PATH as python{release}: --python says where it is."
            )
        found[release] = path
    return found


def _release(python: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([os.path.expanduser(python), "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def install(python: str, jax: str, folder: pathlib.Path) -> str:
    """Make the environment, or what is missing of it, with this tree in it; its interpreter."""
    inside = str(folder / "bin" / "python")
    subprocess.run([os.path.expanduser(python), "-m", "venv", folder], check=True)
    release = f"jax=={jax}" if jax.count(".") > 1 else f"jax=={jax}.*"
    command = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-e", f"{ROOT}[test]", release], check=True)
    return inside


def measure(python: str, folder: pathlib.Path, tests: list[str]) -> dict:
    """Run the tests, shown as they run: versions, counts, the tests that failed, and the date."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    code = subprocess.run(command, cwd=ROOT, env=os.environ | cache).returncode
    if code > 1 or not report.exists():  # 1: tests failed
        raise SystemExit(f"{' '.join(command)} did not run to its end: exit status {code}.")
    versions = json.loads(subprocess.run([python, "-c", ASK], check=True, capture_output=True).stdout)
    return versions | {
        **counted(report.read_text()),
        "date": datetime.date.today().isoformat(),
    }


def counted(report: str) -> dict:
    """Read the counts of pytest's XML report, and the names of what failed."""
    found = {"passed": 0, "failed": [], "skipped": 0}
    for case in xml.fromstring(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"].append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            found["skipped"] += 1
        else:
            found["passed"] += 1
    return found


def table(measured: dict[str, dict]) -> str:
    """Write one line an environment, as Markdown, and the tests that failed."""
    names = ("Python", *PACKAGES)
    lines = [
        f"| {' | '.join(names)} | passed | failed | skipped | date |",
        f"|{' --- |' * len(names)} ---: | ---: | ---: | --- |",
    ]
    for entry in measured.values():
        versions = " | ".join(entry[name.lower()] for name in names)
        numbers = f"{entry['passed']:,} | {len(entry['failed'])} | {entry['skipped']}"
        lines.append(f"| {versions} | {numbers} | {entry['date']} |")
    failed = [
        f"- Python {entry['python']}, jax {entry['jax']}: `{name}`"
        for entry in measured.values()
        for name in entry["failed"]
    ]
    return "\n".join([*lines, *(["", "Failed:", "", *failed] if failed else []), ""])


def header(measured: dict[str, dict]) -> str:
    """Write the head of ``constraints.txt``: a line of comment for each environment in which nothing failed."""
    return "".join(
        f"{HEADER}Python {entry['python']}, {', '.join(f'{name} {entry[name]}' for name in PACKAGES)};"
        f" {entry['passed']:,} tests, {entry['date']}\n"
        for entry in measured.values()
        if not entry["failed"]
    )


def kept() -> dict[str, dict]:
    """Read what was measured so far, by Python:jax."""
    path = RESULTS / "versions.json"
    return json.loads(path.read_text()) if path.exists() else {}


def keep(measured: dict[str, dict]) -> None:
    """Write the numbers, the table, and what passed into the header of ``constraints.txt``."""
    measured = dict(sorted(measured.items(), key=lambda item: _numbers(item[0])))
    (RESULTS / "versions.json").write_text(json.dumps(measured, indent=1) + "\n")
    about = "The default tier of tests, on a CPU: `python -m experiments.reliability.versions run`."
    (RESULTS / "versions.md").write_text(f"{table(measured)}\n{about}\n")
    lines = CONSTRAINTS.read_text().splitlines(keepends=True)
    first, *rest = [line for line in lines if not line.startswith(HEADER)]
    CONSTRAINTS.write_text("".join([first, header(measured), *rest]))


def _numbers(environment: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", environment)]


def _environment(text: str) -> str:
    if not re.fullmatch(r"3\.\d+:\d+\.\d+(\.\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no environment: PYTHON:JAX, like 3.12:0.11.")
    return text


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "render"])
    parser.add_argument("--only", nargs="+", type=_environment, default=ENVIRONMENTS, metavar="PYTHON:JAX")
    parser.add_argument("--python", nargs="+", default=[], metavar="PATH", help="interpreters not on PATH")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=CACHE, help=f"of environments; default {CACHE}"
    )
    parser.add_argument("--tests", nargs="+", default=[], help="files or folders; default all")
    options = parser.parse_args()
    if options.verb == "render":
        return keep(kept())
    pairs = {environment: environment.split(":") for environment in options.only}
    found = interpreters([python for python, _ in pairs.values()], options.python)
    measured = {}
    for environment, (python, jax) in pairs.items():
        folder = options.folder.absolute() / f"py{python}_jax{jax}".replace(".", "")
        print(f"Python {python}, jax {jax}: {folder}", flush=True)
        inside = install(found[python], jax, folder)
        measured[environment] = measure(inside, folder, options.tests)
        if not options.tests:
            keep(kept() | measured)
    print(table(measured))
    sys.exit(any(entry["failed"] for entry in measured.values()))


if __name__ == "__main__":
    main()
