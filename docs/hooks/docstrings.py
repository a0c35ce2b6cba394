"""A griffe extension: the docstrings' reStructuredText roles and literals as Markdown."""

import re

import griffe

ROLE = re.compile(r":(?:func|mod|class|attr|data|meth|exc):`~?([^`]+)`")
LITERAL = re.compile(r"``([^`\n]+)``")


def markdown(text: str) -> str:
    """``x`` and :func:`x` as `x`."""
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text))


class Docstrings(griffe.Extension):
    """Rewrites every docstring, once."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """After an object was read."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
