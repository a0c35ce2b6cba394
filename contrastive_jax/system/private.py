"""Folders of the user for compiled code and approvals, trusted only if other users cannot write them."""

import itertools
import os
import pathlib
import stat
import tempfile


def cache_home() -> pathlib.Path:
    """Return ``$XDG_CACHE_HOME``, or ``~/.cache`` if it is unset, empty or not an absolute path."""
    return _home("XDG_CACHE_HOME", ".cache")


def state_home() -> pathlib.Path:
    """Return ``$XDG_STATE_HOME``, or ``~/.local/state`` if it is unset, empty or not an absolute path."""
    return _home("XDG_STATE_HOME", ".local/state")


def _home(variable: str, default: str) -> pathlib.Path:
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return pathlib.Path(given)
    try:
        return pathlib.Path.home() / default
    except RuntimeError:  # a container's user without name and HOME
        return pathlib.Path(tempfile.gettempdir(), f"contrastive_jax-{os.geteuid()}", default)


def folder(path: pathlib.Path) -> pathlib.Path:
    """Return a folder that only the user can write; create it if it is missing.

    Raises:
      OSError: the folder cannot be created, or :func:`check_folder` refuses it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)
    return path


def check_folder(path: pathlib.Path) -> None:
    """Raise PermissionError as :func:`check`, and if every user can replace the folder or one above it.

    A group's folders are trusted: on many clusters the user's own have such a mode.
    """
    check(path)
    for below, parent in itertools.pairwise((path.absolute(), *path.absolute().parents)):
        mode, owner = parent.stat().st_mode, below.lstat().st_uid
        if mode & stat.S_IWOTH and (not mode & stat.S_ISVTX or owner not in (os.geteuid(), 0)):
            raise PermissionError(f"{parent}, which contains {below.name}, is writable by all users")


def check(path: pathlib.Path) -> None:
    """Raise PermissionError if a path is a link, belongs to another user, or is writable by others."""
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        raise PermissionError(f"{path} is a link")
    if about.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user (uid {about.st_uid})")
    if about.st_mode & 0o022:
        raise PermissionError(f"{path} is writable by other users (mode {stat.S_IMODE(about.st_mode):o})")
