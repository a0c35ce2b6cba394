"""Settings: a config whose values were checked, with the functions that its sections name."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from contrastive_jax.config import schema
from contrastive_jax.config.settings import TAKERS, Finder, plain
from contrastive_jax.lookup import Section


class Settings(dict[str, Any]):
    """A checked config as plain dictionaries; it knows the functions that its sections name."""

    def __init__(self, values: Mapping[str, Any], find: Finder) -> None:
        super().__init__(values)
        self.find = find

    def replaced(self, **sections: Any) -> "Settings":
        """Return settings in which some sections are others, and the functions are the same."""
        return Settings(self | sections, self.find)


def settings_of(config: Mapping[str, Any] | ConfigDict, find: Finder | None = None) -> Settings:
    """Return a config as settings; what are settings already was checked.

    Raises:
      ValueError: a value that is not allowed, in one sentence.
    """
    if isinstance(config, Settings):
        return config
    values, find = plain(config) if isinstance(config, ConfigDict) else config, find or Finder()
    schema.check(values, find)
    return Settings(values, find)


def section(config: Mapping[str, Any], path: str) -> Section:
    """Return the function that a section of a config names, with its options.

    Raises:
      ValueError: there is no such function.
    """
    find = config.find if isinstance(config, Settings) else Finder()
    key = "preset" if path == "augment" else "name"
    name, options = config[path][key], dict(config[path])
    function = find(path, name)
    if function is None:
        raise ValueError(schema.unknown(path, name))
    if function is not TAKERS.get(path):
        del options[key]
    return Section(path, function, options)
