"""Data sets from array files: tables, time series, token ids, features or images of any shape."""

import math
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from contrastive_jax.data.split import Split, group_numbers, numbers, pairs, stratified
from contrastive_jax.data.storage import Source, held_out
from contrastive_jax.kinds import CountOrZero, Decay, Positive, checked
from contrastive_jax.lookup import near

AUTO = "auto"


@checked("data")
def arrays(
    *,
    file: str = "",
    key: str = "x",
    label_key: str = AUTO,
    group_key: str = "",
    pair_key: str = "",
    test_key: str = AUTO,
    test_label_key: str = AUTO,
    test_group_key: str = AUTO,
    test_pair_key: str = AUTO,
    test_fraction: Decay = 0.0,
    split_seed: CountOrZero = 0,
    validation: Decay = 0.0,
    memory_limit: Positive = 8.0,
) -> Source:
    """Load examples of one shape and type from a file of arrays ``[n, ...]``, one example per row.

    Floats become float32, integers int32; uint8 is kept, so ``[n, h, w, c]`` uint8 arrays are images. A key is
    the name of an array in the file, or the path of an .npy file relative to the file's folder. Pickled objects
    are refused, so no code from a file runs.

    Args:
        file: an .npz, .npy or .safetensors file; an .npy file contains examples only and is memory-mapped.
        key: key of the training examples [n, ...]; ignored for an .npy file.
        label_key: key of their labels: [n] integers from 0 (-1: no label) or texts ("": no label), or [n, C] of 0
            and 1; "auto": y if the file has it; "": no labels.
        group_key: key of their groups, [n] integers or texts (an empty one: a group of its own): examples of one
            group are not negatives of each other and are held out together; "": each example is its own group.
        pair_key: key of the second arrays [n, ...], each the pair of an example, for ``second_encoder``; numbers or
            images, as of ``key``; "": examples are no pairs.
        test_key: key of the test examples; "auto": that of ``key`` followed by _test, or x_test, if the file has it;
            "": no test examples.
        test_label_key: key of the test labels; "auto": y_test if the file has it.
        test_group_key: key of the groups of test examples, which only the retrieval of pairs reads; "auto": that of
            ``group_key`` followed by _test, if the file has it.
        test_pair_key: key of the second arrays of test examples; "auto": that of ``pair_key`` followed by _test, if
            the file has it.
        test_fraction: share of every class that is held out as test examples if the file has none; groups stay
            together.
        split_seed: random seed of the held-out test examples.
        validation: stratified share of the training examples that is held out and replaces the test examples,
            for choosing options; the test examples are not used.
        memory_limit: maximum memory of the examples of both splits, in GiB.

    Raises:
        ValueError: an unreadable file, an unknown key, values that are not finite or do not fit 32 bits, arrays
            of different lengths, examples above the memory limit, test examples without the second arrays of
            pairs, or a test fraction for a file with test examples.
        FileNotFoundError: no such file.
    """
    path = pathlib.Path(file).expanduser()
    if not file:
        raise ValueError(
            "data.file is ''; it must be an .npz, .npy or .safetensors file for data.name=arrays."
        )
    held = _opened(path)

    def take(option: str, name: str, usual: str = "") -> np.ndarray | None:
        """Return the array of a key; None if the key is empty or "auto" finds no array."""
        if name == AUTO:
            name = usual if usual in held else ""
        if not name:
            return None
        gibibytes = _stored_size(path, held, name) / 2**30
        if gibibytes > memory_limit:  # before it is read
            raise ValueError(
                f"data.memory_limit is {memory_limit:g}; the array {name!r} of {path} takes {gibibytes:.1f} GiB."
                " Raise the limit if every device has this memory."
            )
        return _array(path, held, option, name)

    x = take("key", next(iter(held)) if path.suffix.lower() == ".npy" else key)
    if x is None:
        raise ValueError("data.key is ''; it must be the name of the array of training examples.")
    y, test_y = take("label_key", label_key, "y"), take("test_label_key", test_label_key, "y_test")
    usual = f"{key}_test" if f"{key}_test" in held else "x_test"
    test_x, group = take("test_key", test_key, usual), take("group_key", group_key)
    pair, test_pair = take("pair_key", pair_key), None
    if pair_key in ("", AUTO):
        _refuse("pair_key", test_pair_key, "data.pair_key is ''")
    if not group_key:
        _refuse("group_key", test_group_key, "data.group_key is ''")
    test_group = None
    if test_x is None:
        test_y = None
        if test_key == AUTO and pair_key and f"{pair_key}_test" in held:
            raise ValueError(
                f"data.test_key is 'auto', and {path} has {pair_key}_test, but no {key}_test; set"
                " data.test_key to the name of the first test arrays, or to ''."
            )
        for option, name in (("pair_key", test_pair_key), ("group_key", test_group_key)):
            _refuse(option, name, f"{path} has no test examples")
    elif test_fraction:
        raise ValueError(
            f"data.test_fraction is {test_fraction:g}, but {path} has test examples; set"
            " data.test_fraction=0 or data.test_key=''."
        )
    if test_x is not None:
        test_group = take("test_group_key", test_group_key if group_key else "", f"{group_key}_test")
        test_pair = take("test_pair_key", test_pair_key if pair_key else "", f"{pair_key}_test")
    if test_x is not None and pair is not None and test_pair is None:
        raise ValueError(
            f"data.test_pair_key is {test_pair_key!r}, but {path} has test examples; it must be the name of the array"
            " of their second arrays, or set data.test_key=''."
        )
    gibibytes = sum(part.nbytes for part in (x, test_x, pair, test_pair) if part is not None) / 2**30
    if gibibytes > memory_limit:
        raise ValueError(
            f"data.memory_limit is {memory_limit:g}; the examples of {path} take {gibibytes:.1f} GiB."
            " Raise the limit if every device has this memory."
        )
    for option, array, rows in (
        ("label_key", y, x),
        ("group_key", group, x),
        ("pair_key", pair, x),
        ("test_label_key", test_y, x if test_x is None else test_x),
        ("test_group_key", test_group, test_x),
        ("test_pair_key", test_pair, test_x),
    ):
        if array is not None and rows is not None and (not array.ndim or len(array) != len(rows)):
            raise ValueError(
                f"data.{option} is an array {list(array.shape)} of {path}; it must have {len(rows)}"
                " rows, one for each example."
            )
    (label, test_label), classes = _numbered(path, y, test_y)
    group, test_group = _codes(group, test_group)
    train = _split(path, "training", x, label, group, pair)
    test = None
    if test_x is not None:
        test = _split(path, "test", test_x, test_label, test_group, test_pair)
        for number, option in enumerate(("key", "pair_key") if train.paired else ("key",)):
            here, there = (part.of_pair(number).example for part in (test, train))
            if here != there:
                raise ValueError(
                    f"data.test_{option} contains examples {here} in {path}; they must be {there}, as in"
                    f" data.{option}."
                )
    elif test_fraction:
        aside = stratified(train.label, test_fraction, train.group, split_seed)
        if not 0 < aside.sum() < len(aside):
            raise ValueError(
                f"data.test_fraction is {test_fraction:g}; with {len(aside)} examples it leaves a split"
                " empty."
            )
        train, test = train[~aside], train[aside]
    return held_out(Source("arrays", train, test, classes), validation)


def _split(
    path: pathlib.Path,
    name: str,
    x: np.ndarray,
    label: np.ndarray | None,
    group: np.ndarray | None,
    pair: np.ndarray | None,
) -> Split:
    """Return the examples of a split, pairs if there are second arrays."""
    x = numbers(x, f"the {name} examples of {path}")
    if pair is None:
        return Split(x, label, group)
    try:
        return pairs(x, numbers(pair, f"the second arrays of the {name} examples of {path}"), label, group)
    except ValueError as error:
        raise ValueError(f"data.pair_key: {error}") from None


# ------------------------------------------------------------------------------------------------ files


class _Safetensors(Mapping):
    """Arrays of a safetensors file, each read on access."""

    def __init__(self, path: pathlib.Path):
        from safetensors import safe_open

        self._file = safe_open(path, framework="np")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def size(self, name: str) -> int:
        """Return an array's number of bytes."""
        part = self._file.get_slice(name)
        bits = re.match(r"[A-Z]+(\d+)", part.get_dtype())  # F32, BF16, F8_E4M3; BOOL has 8
        return math.prod(part.get_shape()) * int(bits[1] if bits else 8) // 8

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._file.keys()


def _npy(path: pathlib.Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


OPEN: dict[str, Callable[[pathlib.Path], Any]] = {
    ".npz": lambda path: np.load(path, allow_pickle=False),
    ".npy": lambda path: {path.name: _npy(path)},
    ".safetensors": _Safetensors,
}


def _opened(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Open a file of arrays by its suffix."""
    if path.suffix.lower() not in OPEN:
        raise ValueError(f"data.file is {str(path)!r}; it must end in .npz, .npy or .safetensors.")
    if not path.is_file():
        raise FileNotFoundError(f"data.file is {str(path)!r}; there is no such file.")
    held = _read(path, lambda: OPEN[path.suffix.lower()](path))
    if not isinstance(held, Mapping):  # an .npy file named .npz
        raise ValueError(f"data.file is {str(path)!r}, which is a single array; rename it to .npy.")
    if not len(held):
        raise ValueError(f"data.file is {str(path)!r}, which contains no array.")
    return held


def _array(path: pathlib.Path, held: Mapping[str, np.ndarray], option: str, name: str) -> np.ndarray:
    if name in held:
        return np.asanyarray(_read(path, lambda: held[name]))
    if name.endswith(".npy"):
        beside = path.parent / pathlib.Path(name).expanduser()
        if not beside.is_file():
            raise FileNotFoundError(f"data.{option} is {name!r}; there is no file {beside}.")
        return _read(beside, lambda: _npy(beside))
    raise ValueError(f"data.{option} is {name!r}; {path} has no such array. {near(name, list(held))}")


def _stored_size(path: pathlib.Path, held: Mapping[str, np.ndarray], name: str) -> int:
    """Return the number of bytes of an array that would be read into memory; 0 of one that is mapped or missing."""
    if name not in held:
        return 0
    if path.suffix.lower() == ".npz":
        with zipfile.ZipFile(path) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
        return sizes.get(f"{name}.npy", sizes.get(name, 0))
    return held.size(name) if isinstance(held, _Safetensors) else 0


def _read(path: pathlib.Path, function: Callable[[], Any]) -> Any:
    """Call a function that reads a file; raise its errors as a ValueError of one sentence."""
    from safetensors import SafetensorError

    damaged = (ValueError, EOFError, KeyError, OSError, TypeError, SyntaxError, NotImplementedError)
    try:
        return function()
    except (*damaged, zipfile.BadZipFile, zlib.error, SafetensorError, RuntimeError, MemoryError) as error:
        text = " ".join(str(error).split())
        if "pickle" in text or "object" in text.lower():
            raise ValueError(
                f"{path} contains Python objects, which are not read; save arrays of numbers."
            ) from None
        raise ValueError(f"{path} cannot be read: {text or type(error).__name__}.") from None


# ------------------------------------------------------------------------------------------------ labels


def _numbered(
    path: pathlib.Path, *labels: np.ndarray | None
) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Return integer labels, -1 for an empty text, and the names of the classes."""
    there = [label for label in labels if label is not None]
    for label in there:
        if label.dtype.kind not in "iubU":
            raise ValueError(f"labels of {path} are {label.dtype}; they must be whole numbers or strings.")
        if label.dtype.kind == "U" and label.ndim != 1:
            raise ValueError(
                f"labels of {path} are texts {list(label.shape)}; they must be one text a row, or 0 and 1 [n, C]."
            )
    if len({(label.dtype.kind == "U", label.shape[1:]) for label in there}) > 1:
        raise ValueError(f"labels of {path} have two types; training and test labels must have one type.")
    if not there:
        return list(labels), ()
    if there[0].dtype.kind == "U":
        names = np.unique(np.concatenate([label.reshape(-1) for label in there]))
        names = names[names != ""]
        numbered = [
            None if label is None else np.where(label == "", -1, np.searchsorted(names, label))
            for label in labels
        ]
        return numbered, tuple(map(str, names))
    if there[0].ndim == 2:
        count = there[0].shape[1]
    else:
        count = 1 + max((int(label.max()) for label in there if label.size), default=-1)
    return list(labels), tuple(map(str, range(count)))


def _refuse(option: str, name: str, why: str) -> None:
    """Refuse the name of a test array that would not be read."""
    if name not in ("", AUTO):
        raise ValueError(f"data.test_{option} is {name!r}, but {why}; it must be '' or 'auto'.")


def _codes(*groups: np.ndarray | None) -> list[np.ndarray | None]:
    """Return groups as integers."""
    for group in groups:
        if group is not None and group.dtype.kind not in "biuU":
            raise ValueError(
                f"data.group_key is an array of {group.dtype}; groups must be whole numbers or text."
            )
    return [
        group_numbers(group.tolist()) if group is not None and group.dtype.kind == "U" else group
        for group in groups
    ]
