"""Settings: the values of a config, and the functions that its sections name."""

import copy
import json
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, overload

from ml_collections import ConfigDict

from contrastive_jax import augment
from contrastive_jax.config import schema, sections
from contrastive_jax.config.settings import Finder, SavedFinder, plain, strangers
from contrastive_jax.kinds import check
from contrastive_jax.lookup import Section

T = TypeVar("T")
Values = Mapping[str, Any]


class _Attribute(Generic[T]):
    """Attribute of :class:`Settings`, computed on first access."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def read(self, settings: "Settings") -> T:
        raise NotImplementedError

    @overload
    def __get__(self, settings: None, owner: type) -> "_Attribute[T]": ...

    @overload
    def __get__(self, settings: "Settings", owner: type) -> T: ...

    def __get__(self, settings: "Settings | None", owner: type) -> Any:
        if settings is None:
            return self
        return settings.__dict__.setdefault(self.name, self.read(settings))


class _Value(_Attribute[T]):
    """Option outside all sections."""

    def read(self, settings: "Settings") -> T:
        return settings.values.get(self.name, getattr(sections.General, self.name))


class _Fields(_Attribute[T]):
    """Section of :mod:`contrastive_jax.config.sections`; if the config lacks it, its defaults."""

    def __init__(self, fields: type[T]) -> None:
        self.fields = fields

    def read(self, settings: "Settings") -> T:
        values = _values(settings.values.get(self.name, {}))
        check(self.fields, values, self.name)
        try:
            return self.fields(**values)
        except TypeError as error:  # unknown option
            raise ValueError(f"{self.name}: {error}.") from None


class _Function(_Attribute[Section]):
    """Section with the options of a function, which the section names or which is fixed."""

    def read(self, settings: "Settings") -> Section:
        return settings.section(self.name, settings.values.get(self.name))


class _Columns(_Attribute[Mapping[str, Section]]):
    """Section of named sections: ``loss`` and ``evaluators``."""

    def read(self, settings: "Settings") -> Mapping[str, Section]:
        columns = settings.values.get(self.name, {})
        return {name: settings.section(f"{self.name}.{name}", column) for name, column in columns.items()}


class Settings:
    """Values of a config; an attribute is a section, or an option outside all sections.

    A section that names a function is a :class:`~contrastive_jax.lookup.Section`; the others are instances of
    the classes of :mod:`contrastive_jax.config.sections`. :func:`contrastive_jax.config.resolve` returns
    validated settings; without validation (:func:`as_settings`) an invalid section raises a ValueError when it
    is read. Settings are immutable: :meth:`replaced` returns a modified copy.
    """

    name = _Value[str]()
    seed = _Value[int]()
    dtype = _Value[Literal["float32", "bfloat16", "float64"]]()
    directions = _Value[Literal["both", "one_way"]]()
    score = _Value[Literal["cosine", "dot"]]()
    data = _Function()
    compose = _Function()
    augment = _Function()
    encoder = _Function()
    second_augment = _Function()  # of the second arrays of pairs
    second_encoder = _Function()
    projector = _Function()
    predictor = _Function()
    critic = _Function()
    norm = _Function()
    probe = _Fields(sections.Probe)
    target = _Function()
    candidates = _Function()
    negatives = _Function()
    margin = _Function()
    transform = _Function()
    temperature = _Function()
    normalizer = _Function()
    loss = _Columns()  # term -> its function; weight is among the options
    optimizer = _Function()
    schedule = _Function()
    train = _Fields(sections.Train)
    evaluate = _Fields(sections.Evaluate)
    evaluators = _Columns()
    gradient_snr = _Function()
    diagnostics = _Function()
    log = _Fields(sections.Log)
    checkpoint = _Fields(sections.Checkpoint)
    init = _Fields(sections.Init)
    preview = _Fields(sections.Preview)
    profile = _Fields(sections.Profile)
    embed = _Fields(sections.Embed)
    export = _Fields(sections.Export)
    report = _Fields(sections.Report)

    values: Values
    find: Finder
    checked: bool

    def __init__(self, values: Values, find: Finder | None = None, checked: bool = False) -> None:
        self.__dict__.update(values=values, find=find or Finder(), checked=checked)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"settings.{name} cannot be set: settings are immutable; settings.replaced({name}=...) returns"
            " a changed copy."
        )

    def __contains__(self, section: str) -> bool:
        return section in self.values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"Settings({self.values!r})"

    def __reduce__(self) -> tuple:
        return Settings, (self.to_dict(), None, self.checked)  # the copy looks functions up again

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain dictionaries, the content of ``config.json``."""
        return copy.deepcopy(dict(self.values))

    def only(self, *names: str) -> dict[str, Any]:
        """Return the named sections that the config has, as plain dictionaries."""
        return {name: value for name, value in self.to_dict().items() if name in names}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as text."""
        return json.dumps(self.to_dict())

    def replaced(self, **sections: Any) -> "Settings":
        """Return a copy with some sections replaced by plain dictionaries, without new lookups of functions."""
        return Settings({**self.values, **sections}, self.find, self.checked)

    def section(self, path: str, given: Any) -> Section:
        """Return the function that a section names, with its options.

        Raises:
          ValueError: the function is unknown, or the section is missing or not a section.
        """
        part, _, term = path.partition(".")
        if part == "loss" and not isinstance(given, Mapping):
            given = {"weight": given}  # a term may be given by its weight alone
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{path} is {'missing' if given is None else repr(given)}; it must be a section."
            )
        options = _values(given)
        if part in schema.SECTIONS:
            return Section(path, "", schema.SECTIONS[part], options)
        key = "preset" if part == "augment" else "name"
        name = term if part == "loss" else given.get(key, "")
        function = self.find(part if part == "loss" else path, name)
        if function is None:
            raise ValueError(schema.unknown(path, name))
        for option in strangers(path, given, self.find):
            del options[option]
        if part == "augment":
            function = augment.options_of(function)[0]  # the preset is one of its options
        else:
            options.pop(key, None)
        return Section(path, name, function, options)


def _values(section: Values) -> dict[str, Any]:
    """Return options as functions take them, with JSON's lists as tuples."""

    def value(given: Any) -> Any:
        return tuple(map(value, given)) if isinstance(given, list | tuple) else given

    return {name: value(given) for name, given in section.items()}


def saved_settings(config: Values | ConfigDict) -> Settings:
    """Return the settings of a saved config without validation; missing functions raise when called."""
    return as_settings(config, SavedFinder())


def as_settings(config: "Settings | Values | ConfigDict", find: Finder | None = None) -> Settings:
    """Return a config as settings without validation; a saved config may lack sections."""
    if isinstance(config, Settings):
        return config
    return Settings(plain(config) if isinstance(config, ConfigDict) else config, find)


def settings_of(config: "Settings | Values | ConfigDict", find: Finder | None = None) -> Settings:
    """Return a config as validated settings; settings that were validated before are returned unchanged.

    Raises:
      ValueError: a value is not allowed; the message is one sentence.
    """
    settings = as_settings(config, find)
    if settings.checked:
        return settings
    schema.check(settings.values, settings.find)
    return Settings(settings.values, settings.find, checked=True)
