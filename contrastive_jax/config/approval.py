"""Functions that saved configs may name: the package's own, and those that the user has allowed.

Workdirs, configs and exported encoders are sent from one person to another, so reading one must not run code. A
user allows a function outside the package, ``module:function``, by naming it: on the command line, in a config
file, in a config that a program passes to ``train``, with ``--allow`` or by :func:`allow`. Training saves the
approval for its workdir in the user's state folder, so that resuming and evaluating need no further approval.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from contrastive_jax.lookup import UNKNOWN, check_name, file_of, is_own
from contrastive_jax.system import console, private

_allowed: set[str] = set()  # in this process, for any workdir


def allow(*names: str) -> None:
    """Allow functions, each ``module:function``, in saved configs that this program reads from now on.

    Raises:
      ValueError: a name of another form, or a module of the standard library.
    """
    for name in names:
        check_name(name, "allow")
        _allowed.add(name)
        UNKNOWN.discard(name)


def is_name(text: str) -> bool:
    """Return whether a text is ``module:function``, with a module outside the standard library."""
    try:
        return bool(check_name(text, ""))
    except ValueError:
        return False


def named(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(option, module:function)`` for every function outside the package that a config names."""
    for key, value in config.items():
        option = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from named(value, f"{option}.")
        if (key in ("name", "preset") and path or option == "log.on_log") and is_own(value):
            yield option, value
        if path == "loss." and is_own(key):
            yield option, key.replace("/", ".")
    if not path and is_own(loss := config.get("loss", "")):
        yield "loss", str(loss)


def check(config: Mapping[str, Any], place: str | os.PathLike) -> None:
    """Refuse a saved config with functions that the user has not allowed, without importing them.

    Args:
      config: the saved config.
      place: the workdir (or the folder of the file) that it was read from.

    Raises:
      ValueError: a function is not allowed; the message names it, its file and the way to allow it.
    """
    for option, name in named(config):
        module = check_name(name, option)
        file = file_of(module)
        if file is None and name not in _allowed:
            UNKNOWN.add(name)  # the config can be read without the module, but the function cannot be called
        if file is None or _kept(name, file, place):
            continue
        if name not in _allowed:
            raise ValueError(
                f"{option} is {name!r} in the config of {place}; it would run code of {file}. If you"
                f" trust that file, allow it with --allow={name} (in a program:"
                " contrastive_jax.config.allow)."
            )
        _keep(name, file, place)


def keep(config: Mapping[str, Any], workdir: str | os.PathLike) -> None:
    """Save the approval of all functions outside the package that the user's config names, for its workdir."""
    for _, name in named(config):
        UNKNOWN.discard(name)
        if (file := file_of(name.partition(":")[0])) is not None and not _kept(name, file, workdir):
            _allowed.add(name)
            _keep(name, file, workdir)


def _keep(name: str, file: str, workdir: str | os.PathLike) -> None:
    about = {"workdir": _address(workdir), "function": name, "file": file}
    try:
        place = private.folder(_approvals())
        temporary = place / f".{os.getpid()}"
        temporary.write_text(json.dumps(about, indent=2) + "\n")
        temporary.replace(place / f"{_digest(name, file, _address(workdir))}.json")
    except OSError as error:
        console.warn(
            f"the approval of {name} for {workdir} cannot be saved in {_approvals()}"
            f" ({error.strerror or error}); the next command on this workdir needs --allow={name}."
        )


def _kept(name: str, file: str, place: str | os.PathLike) -> bool:
    """Return whether a function is approved for a workdir, or for the one that holds this replica or file."""
    address = _address(place)
    try:
        private.check_folder(_approvals())
    except OSError:  # there are no approvals, or other users may have written them
        return False
    return any(
        (_approvals() / f"{_digest(name, file, owner)}.json").is_file()
        for owner in (address, address.rpartition("/")[0])
    )


def _approvals() -> pathlib.Path:
    return private.state_home() / "contrastive_jax" / "allowed"


def _address(workdir: str | os.PathLike) -> str:
    text = str(workdir)
    return text.rstrip("/") if re.match(r"\w+://", text) else os.path.realpath(os.path.expanduser(text))


def _digest(name: str, file: str, workdir: str) -> str:
    """Hash an approval: workdir, function's name and file; of a file inside the workdir the content too."""
    content = b""  # a notebook's functions have no file
    if os.path.isfile(file) and f"{os.path.realpath(file)}/".startswith(f"{workdir}/"):
        content = pathlib.Path(file).read_bytes()
    parts = [workdir.encode(), name.encode(), file.encode(), content]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
