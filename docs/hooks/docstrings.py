"""Griffe extensions: docstrings' reStructuredText roles and literals as Markdown; names that one imports."""

import importlib
import re

import griffe

ROLE = re.compile(r":(?:func|mod|class|attr|data|meth|exc):`~?([^`]+)`")
LITERAL = re.compile(r"``([^`\n]+)``")


def markdown(text: str) -> str:
    """Write ``x`` and :func:`x` as `x`."""
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text))


class Docstrings(griffe.Extension):
    """The visitor that rewrites every docstring, once."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


class Public(griffe.Extension):
    """The visitor that adds the names that a package loads at first use, which its text does not import."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Add the names to a package that was read."""
        for name, module in getattr(importlib.import_module(pkg.path), "_PUBLIC", {}).items():
            pkg.set_member(name, griffe.Alias(name, f"{module}.{name}"))
