"""Executes notebooks and keeps what they put out: ``python notebooks/_execute.py [NAME ...]``, all by default.

What one edits is the ``.py``; its pair is written anew, with outputs, from top to bottom in a fresh kernel. The badge
and REPOSITORY of each are made of one line, ``repository-code`` of CITATION.cff.
"""

import argparse
import base64
import hashlib
import io
import os
import pathlib
import re

import jupytext
import nbformat
import yaml
from PIL import Image

ROOT = pathlib.Path(__file__).parent.parent
COLAB = "https://colab.research.google.com"
BADGE = re.compile(r"^(# )?\[!\[Open in Colab\].*$", re.MULTILINE)
REPOSITORY = re.compile(r'^REPOSITORY = ".*"$', re.MULTILINE)
LARGEST = 30_000  # bytes of a picture
NUMBER = re.compile(r"[-+]?\d[\d.,:]*(e[-+]?\d+)?|\bnan\b|\binf\b")
ADDRESS = re.compile(r"\b0x[0-9a-f]+|(?<![\w.])/\S+")
STYLE = re.compile(r"\x1b\[[\d;]*m")


def scripts() -> list[pathlib.Path]:
    """The notebooks' texts."""
    return sorted((ROOT / "notebooks").glob("[!_]*.py"))


def repository() -> str:
    """What ``git clone`` takes, of CITATION.cff; empty where it does not say."""
    return yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code", "")


def badge(name: str, address: str) -> str:
    """A link to the notebook on Colab; without an address on GitHub, to where Colab asks for one."""
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(\.git)?/?", address)
    where = f"{found[1]}/blob/main/notebooks/{name}.ipynb" if found else ""
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({COLAB}/github/{where})"


def addressed(name: str, text: str, address: str) -> str:
    """The text of a notebook with its badge and its REPOSITORY."""
    text = BADGE.sub(lambda line: (line[1] or "") + badge(name, address), text)
    return REPOSITORY.sub(lambda _: f'REPOSITORY = "{address}"', text)


def digest(notebook: nbformat.NotebookNode) -> str:
    """Of its code: outputs of another code are stale."""
    code = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def execute(script: pathlib.Path) -> nbformat.NotebookNode:
    """A notebook with its outputs, from a fresh kernel on the CPU.

    Raises:
      CellExecutionError: a cell did.
    """
    from nbclient import NotebookClient

    notebook = jupytext.read(script)
    own = {
        name: value for name, value in os.environ.items() if name != "XLA_FLAGS"
    }  # of tests: eight devices
    environment = own | {"JAX_PLATFORMS": "cpu", "COLUMNS": "100"}
    folder = {"metadata": {"path": str(script.parent)}}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=folder).execute(env=environment)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = [small(output) for output in joined(cell.outputs)]
    kernel = notebook.metadata["kernelspec"]
    notebook.metadata = nbformat.from_dict(
        {
            "jupytext": {"formats": "ipynb,py:percent"},
            "kernelspec": kernel,
            "executed": {"code": digest(notebook)},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def joined(outputs: list) -> list:
    """Outputs in which pieces of printed text that follow each other are one, without colours.

    The package prints by rich, whose every line is an output of its own in a notebook.
    """
    found: list = []
    for output in outputs:
        data = output.get("data", {})
        if data.get("text/html", "").startswith("<pre"):
            output = nbformat.v4.new_output(
                "stream", name="stdout", text=STYLE.sub("", data["text/plain"]).rstrip("\n") + "\n"
            )
        last = found[-1] if found else {}
        if output.output_type == "stream" and output.name == last.get("name"):
            last["text"] += output.text
        else:
            found.append(output)
    return found


def small(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output whose picture has 64 colours, or as few as make it LARGEST bytes."""
    if "image/png" in output.get("data", {}):
        picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
        for colours in (64, 32, 16):
            file = io.BytesIO()
            picture.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
            if len(file.getvalue()) <= LARGEST:
                break
        output.data["image/png"] = base64.b64encode(file.getvalue()).decode()
    return output


def shape(notebook: nbformat.NotebookNode) -> list[list[tuple[str, str]]]:
    """Of every code cell, its outputs: kind, and text without numbers, times, folders and widths of columns."""

    def of(output):
        kinds = [output.get("name", ""), *sorted(output.get("data", {}))]
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        masked = NUMBER.sub("#", ADDRESS.sub("@", STYLE.sub("", text)))
        return f"{output.output_type} {' '.join(kinds)}", " ".join(re.sub(r"[─━-]+", "-", masked).split())

    return [
        [of(output) for output in joined(cell.outputs)] for cell in notebook.cells if cell.cell_type == "code"
    ]


def main() -> None:
    """Writes the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of notebooks; all by default")
    names = parser.parse_args().names
    known = {script.stem: script for script in scripts()}
    if unknown := set(names) - set(known):
        parser.error(f"NAME is {', '.join(sorted(unknown))}; allowed: {', '.join(known)}.")
    for name in names or known:
        script = known[name]
        script.write_text(addressed(name, script.read_text(), repository()))
        nbformat.write(execute(script), script.with_suffix(".ipynb"))
        print(script.with_suffix(".ipynb").relative_to(ROOT))


if __name__ == "__main__":
    main()
