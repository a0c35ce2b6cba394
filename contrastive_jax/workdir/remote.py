"""Workdirs in an object store (``gs://bucket/run``), with a local copy of their files.

Files in an object store cannot be appended to or replaced in place. So a run writes its files (config, metrics,
result, pictures, embeddings) to a local folder, which is uploaded whenever a checkpoint is saved and at the
end, and then removed. Checkpoints are written directly to the store. A run that continues on another machine
starts from the store's files.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from contrastive_jax import distributed
from contrastive_jax.system import private

CHECKPOINTS = "checkpoints"
KEPT = ("config.json", "replicas.json")  # files that no run removes
SECONDS = 15.0  # timeout for a store's answer


class Remote(os.PathLike):
    """Workdir in an object store; its text is the address, its file-system path that of the local copy."""

    def __init__(self, address: str):
        # One copy per process (the processes of two containers may share a number and a home folder): another
        # mode on the same run must not clear the files that training appends to.
        name = f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{uuid.uuid4().hex[:16]}"
        self.store, self.local = (
            epath.Path(address),
            private.cache_home() / "contrastive_jax" / "workdirs" / name,
        )
        self._address = address
        self._sent: dict[str, tuple[int, int]] = {}

    def __str__(self) -> str:
        return self._address

    def __fspath__(self) -> str:
        return str(self.local)

    def pull(self) -> None:
        """Replace the local copy by the store's files, without checkpoints other than those of replicas."""
        shutil.rmtree(self.local, ignore_errors=True)
        self.local.mkdir(parents=True)
        if self.store.exists():
            for path in self.store.iterdir():
                if path.name != CHECKPOINTS:
                    _copy_down(path, self.local / path.name)
        self._sent = self._state()

    def push(self) -> None:
        """Upload files that changed since the last pull or push, and remove those that the run removed or renamed.

        Only the first process does.

        Raises:
          FileNotFoundError: the local copy or its config was removed; nothing is uploaded or removed.
        """
        if not distributed.first():
            return
        now = self._state()
        if not self.local.is_dir() or any(name in self._sent and name not in now for name in KEPT):
            raise FileNotFoundError(
                f"{self.local}, the local copy of {self}, was removed by another program. The files in the store are"
                " those of the last checkpoint; run the same command again to continue from it."
            )
        for name in sorted(now):
            if self._sent.get(name) != now[name]:
                target = self.store / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((self.local / name).read_bytes())
        for name in self._sent.keys() - now.keys():  # after the uploads: one of them may be its new name
            (self.store / name).unlink(missing_ok=True)
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
    """Return whether a workdir is an address (``gs://...``) instead of a local path."""
    return "://" in str(workdir)


def check_reachable(workdir: str | os.PathLike) -> None:
    """Refuse an address whose store does not answer within ``SECONDS``; its client would retry for minutes.

    Raises:
      ConnectionError: the store cannot be reached; the message includes the cause.
      ValueError: no installed package reads such an address; the message names one that does.
    """
    result: list[BaseException | None] = []

    def ask() -> None:
        try:
            epath.Path(str(workdir)).exists()
            result.append(None)
        except BaseException as error:
            result.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # abandoned if it does not return
    asking.start()
    asking.join(SECONDS)
    error = result[0] if result else TimeoutError(f"no answer within {SECONDS:.0f} s")
    if isinstance(error, KeyError | ImportError):  # unknown kind of store; missing library
        kind = str(workdir).partition("://")[0]
        raise ValueError(
            f"--workdir={str(workdir)!r}: {kind}:// cannot be read ({error}). For gs:// pip install"
            " 'contrastive_jax[gcs]'; else use a folder."
        ) from None
    if error is not None:
        raise ConnectionError(
            f"--workdir={str(workdir)!r} cannot be reached ({str(error) or type(error).__name__}):"
            " check the network, the name and the credentials, or use a folder."
        ) from error


@contextlib.contextmanager
def mirrored(workdir: str | os.PathLike) -> Iterator[Any]:
    """Yield the workdir's path or, for an address, a :class:`Remote`, downloaded first and uploaded at the end.

    The local copy is removed after the upload; if the upload fails, it stays.

    Raises:
      ConnectionError: the store cannot be reached.
      ValueError: no installed package reads such an address; the message names one that does.
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
    """Return a mode ``(config, workdir, **options)`` whose workdir and option ``output`` may also be addresses."""

    @functools.wraps(mode)
    def call(config, workdir, **options):
        with contextlib.ExitStack() as copies:
            if options.get("output") is not None:
                options["output"] = copies.enter_context(mirrored(options["output"]))
            return mode(config, copies.enter_context(mirrored(workdir)), **options)

    return call


def push(workdir: str | os.PathLike) -> None:
    """Upload changed files if the workdir is a :class:`Remote`."""
    if isinstance(workdir, Remote):
        workdir.push()


def place(workdir: str | os.PathLike, name: str) -> pathlib.Path | epath.Path:
    """Return the path of a workdir's file, in the store for a :class:`Remote`."""
    return workdir.store / name if isinstance(workdir, Remote) else pathlib.Path(workdir, name)


def checkpoints(workdir: str | os.PathLike) -> epath.Path:
    """Return the folder of a workdir's checkpoints, in the store itself for an address."""
    return (epath.Path(str(workdir)) if is_remote(workdir) else epath.Path(workdir)) / CHECKPOINTS


def expanded(path: str | os.PathLike) -> str | os.PathLike:
    """Return a path with its ``~`` expanded to the home folder."""
    return os.path.expanduser(path) if isinstance(path, str) else path


def checkpoints_of(path: str | os.PathLike) -> epath.Path:
    """Return the folder of a workdir's checkpoints if there is one, otherwise ``path`` itself."""
    inside = checkpoints(path)
    return inside if inside.exists() else inside.parent
