"""Kept at the top level for tools that look for it; everything is in pyproject.toml."""

from setuptools import setup

setup()
