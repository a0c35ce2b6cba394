"""Check of links in a workdir of unknown origin: no write may follow a link to a place outside of it."""

import contextlib
import os
import pathlib
import re
import shutil

from contrastive_jax.workdir import remote

# Files that are written in place; others are replaced atomically.
IN_PLACE = r"\.lock|lock\.json|metrics\.jsonl|\.writable-\d+"


def check_links(workdir: str | os.PathLike) -> None:
    """Refuse a workdir that holds a symbolic link to a place outside of it, before anything is written.

    A hard-linked file that is written in place is replaced by a copy. The workdir itself may be a link.

    Raises:
      OSError: there is such a link; the message gives the link and its target.
    """
    if remote.is_remote(workdir):
        return
    root = os.path.realpath(workdir)
    folders = [root] if os.path.isdir(root) else []
    while folders:
        # A run may rename and remove files during the scan.
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if not f"{target}/".startswith(f"{root}/"):
                        raise OSError(
                            f"{entry.path} is a link to {target}, outside the workdir: writing there"
                            " could replace another of your files. Remove the link, or choose another"
                            " --workdir."
                        )
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif re.fullmatch(IN_PLACE, entry.name) and entry.stat(follow_symlinks=False).st_nlink > 1:
                    _separate(pathlib.Path(entry.path))


def _separate(path: pathlib.Path) -> None:
    copy = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.copyfile(path, copy)
    copy.replace(path)
