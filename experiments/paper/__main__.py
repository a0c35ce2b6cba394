"""The command: render the page and its figures."""

import argparse
import pathlib
import sys

import experiments.paper
from experiments.harness import ROOT

PAGE = ROOT / "docs" / "paper.md"


def text() -> str:
    """Return the page.

    Raises:
      jinja2.UndefinedError: the prose names a number that there is not.
    """
    import jinja2

    from experiments.paper import numbers

    # Braces of equations stand in the prose, so that numbers have brackets.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.paper", ""), undefined=jinja2.StrictUndefined,
        variable_start_string="[[", variable_end_string="]]", keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("text.jinja").render({n: getattr(numbers, n) for n in numbers.__all__})


def write() -> list[pathlib.Path]:
    """Write the page and its figures; the files."""
    from experiments.paper import figures  # the tables, and what they read

    PAGE.write_text(text())
    return [*figures.save(), PAGE]


def main() -> int:
    """Writes them."""
    argparse.ArgumentParser(description=experiments.paper.__doc__.splitlines()[0]).parse_args()
    print(*(file.relative_to(ROOT) for file in write()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
