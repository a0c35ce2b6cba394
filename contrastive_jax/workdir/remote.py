"""A workdir in an object store (``gs://bucket/run``): its files live in a local folder meanwhile.

An object store has no files to append to or to replace in place, so that what a run writes about itself (config,
metrics, result, pictures, embeddings) is written into a folder of this machine, and copied up whenever a checkpoint
is saved and at the end, when the folder goes. Checkpoints themselves go straight to the store. Who continues the run
elsewhere starts from what the store holds.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from contrastive_jax import distributed
from contrastive_jax.system import private

CHECKPOINTS = "checkpoints"
SECONDS = 15.0  # for a store to answer


class Remote(os.PathLike):
    """A workdir that is shown by its address, and whose path is that of the local copy."""

    def __init__(self, address: str):
        # A process has a copy of its own: another mode on the same run must not clear what training appends to.
        name = f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{os.getpid()}"
        self.store, self.local = (
            epath.Path(address),
            private.cache_home() / "contrastive_jax" / "workdirs" / name,
        )
        self._address, self._sent = address, {}

    def __str__(self) -> str:
        return self._address

    def __fspath__(self) -> str:
        return str(self.local)

    def pull(self) -> None:
        """Make the local copy what the store holds, but for its own checkpoints; replicas' are read in the copy."""
        shutil.rmtree(self.local, ignore_errors=True)
        self.local.mkdir(parents=True)
        if self.store.exists():
            for path in self.store.iterdir():
                if path.name != CHECKPOINTS:
                    _copy_down(path, self.local / path.name)
        self._sent = self._state()

    def push(self) -> None:
        """Copy up what has changed since; of several processes the first one does."""
        now = self._state() if distributed.first() else {}
        for name in sorted(now):
            if self._sent.get(name) != now[name]:
                target = self.store / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((self.local / name).read_bytes())
        self._sent = now

    def drop(self) -> None:
        """Remove the local copy."""
        shutil.rmtree(self.local, ignore_errors=True)

    def _state(self) -> dict[str, tuple[int, int]]:
        files = [path for path in self.local.rglob("*") if path.is_file()]
        stats = {path.relative_to(self.local).as_posix(): path.stat() for path in files}
        return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


def _copy_down(path: epath.Path, target: pathlib.Path) -> None:
    if path.is_dir():
        target.mkdir()
        for child in path.iterdir():
            _copy_down(child, target / child.name)
    else:
        target.write_bytes(path.read_bytes())


def is_remote(workdir: str | os.PathLike) -> bool:
    """Return whether a workdir is no path of this machine."""
    return "://" in str(workdir)


def check_reachable(workdir: str | os.PathLike) -> None:
    """Refuse an address whose store does not answer within ``SECONDS``: its client tries again for minutes.

    Raises:
      ConnectionError: it does not answer; says what it said.
      ValueError: an address of a kind that nothing installed here reads; says what would.
    """
    result: list[BaseException | None] = []

    def ask() -> None:
        try:
            epath.Path(str(workdir)).exists()
            result.append(None)
        except BaseException as error:
            result.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # left behind where it does not come back
    asking.start()
    asking.join(SECONDS)
    error = result[0] if result else TimeoutError(f"no answer within {SECONDS:.0f} s")
    if isinstance(error, KeyError | ImportError):  # no such kind of store; its library is missing
        kind = str(workdir).partition("://")[0]
        raise ValueError(
            f"--workdir={str(workdir)!r}: {kind}:// cannot be read here ({error}). For gs:// pip install"
            " 'contrastive_jax[gcs]'; else take a folder."
        ) from None
    if error is not None:
        raise ConnectionError(
            f"--workdir={str(workdir)!r} cannot be reached ({str(error) or type(error).__name__}): look at the network,"
            " the name and the credentials, or take a folder."
        ) from error


@contextlib.contextmanager
def mirrored(workdir: str | os.PathLike) -> Iterator[Any]:
    """Yield the workdir's path, or the :class:`Remote` of an address, which is copied down before and up afterwards.

    The local copy is removed once all of it is in the store; where copying up fails, it stays.

    Raises:
      ValueError: an address of a kind that nothing installed here reads; says what would.
    """
    if not is_remote(workdir) or isinstance(workdir, Remote):
        yield expanded(workdir)
        return
    check_reachable(workdir)
    remote = Remote(str(workdir))
    try:
        remote.pull()
    except BaseException:
        remote.drop()
        raise
    try:
        yield remote
    finally:
        remote.push()
        remote.drop()


def supports_remote(mode: Callable[..., Any]) -> Callable[..., Any]:
    """Let the workdir of a mode ``(config, workdir, **options)`` be an address."""

    @functools.wraps(mode)
    def call(config, workdir, **options):
        with mirrored(workdir) as here:
            return mode(config, here, **options)

    return call


def push(workdir: str | os.PathLike) -> None:
    """Copy up what has changed, where the workdir is an address."""
    if isinstance(workdir, Remote):
        workdir.push()


def place(workdir: str | os.PathLike, name: str) -> pathlib.Path | epath.Path:
    """Return where a file of a workdir is to be found: its path, or its place in the store."""
    return workdir.store / name if isinstance(workdir, Remote) else pathlib.Path(workdir, name)


def checkpoints(workdir: str | os.PathLike) -> epath.Path:
    """Return where the checkpoints of a workdir are: beside its files, but of an address in the store itself."""
    return (epath.Path(str(workdir)) if is_remote(workdir) else epath.Path(workdir)) / CHECKPOINTS


def expanded(path: str | os.PathLike) -> str | os.PathLike:
    """Return a path that a user wrote with its ``~`` as that of the home folder."""
    return os.path.expanduser(path) if isinstance(path, str) else path


def checkpoints_of(path: str) -> epath.Path:
    """Return the checkpoints of a workdir, or of the folder itself."""
    inside = checkpoints(path)
    return inside if inside.exists() else inside.parent
