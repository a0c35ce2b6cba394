"""Settings: a config as values, with the functions that its sections name."""

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
    """An attribute of settings; it is read once."""

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
    """An option outside of all sections."""

    def read(self, settings: "Settings") -> T:
        return settings.values.get(self.name, getattr(sections.General, self.name))


class _Fields(_Attribute[T]):
    """A section of :mod:`contrastive_jax.config.sections`; a config without it has its defaults."""

    def __init__(self, fields: type[T]) -> None:
        self.fields = fields

    def read(self, settings: "Settings") -> T:
        values = _values(settings.values.get(self.name, {}))
        check(self.fields, values, self.name)
        try:
            return self.fields(**values)
        except TypeError as error:  # another option
            raise ValueError(f"{self.name}: {error}.") from None


class _Function(_Attribute[Section]):
    """A section that names a function, or is always the same one's."""

    def read(self, settings: "Settings") -> Section:
        return settings.section(self.name, settings.values.get(self.name))


class _Columns(_Attribute[Mapping[str, Section]]):
    """A section of sections."""

    def read(self, settings: "Settings") -> Mapping[str, Section]:
        columns = settings.values.get(self.name, {})
        return {name: settings.section(f"{self.name}.{name}", column) for name, column in columns.items()}


class Settings:
    """A config as values: an attribute is a section, or an option outside of all sections.

    A section that names a function is a :class:`~contrastive_jax.lookup.Section`; the others are the classes of
    :mod:`contrastive_jax.config.sections`. :func:`contrastive_jax.config.resolve` gives settings that were checked; of
    others (:func:`as_settings`) a section that is wrong raises a ValueError when it is read. Settings do not change:
    :meth:`replaced` returns others.
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
        raise AttributeError(f"settings do not change; replaced({name}=...) returns others.")

    def __contains__(self, section: str) -> bool:
        return section in self.values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"Settings({self.values!r})"

    def __reduce__(self) -> tuple:
        return Settings, (self.to_dict(), None, self.checked)  # functions are looked up again

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain dictionaries: what ``config.json`` holds."""
        return copy.deepcopy(dict(self.values))

    def only(self, *names: str) -> dict[str, Any]:
        """Return some sections as plain dictionaries, those that are known."""
        return {name: value for name, value in self.to_dict().items() if name in names}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as text."""
        return json.dumps(self.to_dict())

    def replaced(self, **sections: Any) -> "Settings":
        """Return settings in which some sections, plain dictionaries, are others; the functions stay known."""
        return Settings({**self.values, **sections}, self.find, self.checked)

    def section(self, path: str, given: Any) -> Section:
        """Return the function that a section names, with its options.

        Raises:
          ValueError: there is no such function, or no such section.
        """
        part, _, term = path.partition(".")
        if part == "loss" and not isinstance(given, Mapping):
            given = {"weight": given}  # a term may be its weight alone
        if not isinstance(given, Mapping):
            raise ValueError(f"{path} is {'missing' if given is None else repr(given)}; it is a section.")
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
            function = augment.options_of(function)[0]  # whose options the preset is one of
        else:
            options.pop(key, None)
        return Section(path, name, function, options)


def _values(section: Values) -> dict[str, Any]:
    """Return options as functions take them: JSON's lists are tuples."""

    def value(given: Any) -> Any:
        return tuple(map(value, given)) if isinstance(given, list | tuple) else given

    return {name: value(given) for name, given in section.items()}


def saved_settings(config: Values | ConfigDict) -> Settings:
    """Return the settings of a saved config, unchecked; functions that are not here raise when they are called."""
    return as_settings(config, SavedFinder())


def as_settings(config: "Settings | Values | ConfigDict", find: Finder | None = None) -> Settings:
    """Return a config as settings, without a look at its values: one that was saved may lack sections."""
    if isinstance(config, Settings):
        return config
    return Settings(plain(config) if isinstance(config, ConfigDict) else config, find)


def settings_of(config: "Settings | Values | ConfigDict", find: Finder | None = None) -> Settings:
    """Return a config as settings whose values are allowed; those that were checked come back as they are.

    Raises:
      ValueError: a value that is not allowed, in one sentence.
    """
    settings = as_settings(config, find)
    if settings.checked:
        return settings
    schema.check(settings.values, settings.find)
    return Settings(settings.values, settings.find, checked=True)
