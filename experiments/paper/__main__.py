"""The command: render the pages and their figures."""

import argparse
import pathlib
import sys

import experiments.paper
from experiments.harness import ROOT

PAGES = {ROOT / "docs" / f"{name}.md": f"{name}.jinja" for name in ("paper", "findings")}  # -> prose


def text(prose: str) -> str:
    """Return a page by the name of its prose.

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
    return environment.get_template(prose).render({n: getattr(numbers, n) for n in numbers.__all__})


def write() -> list[pathlib.Path]:
    """Write the pages and their figures; the files."""
    from experiments.paper import figures  # the tables, and what they read

    for page, prose in PAGES.items():
        page.write_text(text(prose))
    return [*figures.save(), *PAGES]


def main() -> int:
    """Write the pages and their figures."""
    argparse.ArgumentParser(description=experiments.paper.__doc__.splitlines()[0]).parse_args()
    print(*(file.relative_to(ROOT) for file in write()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
