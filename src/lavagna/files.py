"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic_file", "atomic_folder"]


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it replaces `path`, on an exception it is removed."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    # mkstemp makes files private; a result should have the permissions of any new file.
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary folder beside `path`; on success it takes `path`'s place, on an exception it is removed.

    A folder that stood there is moved aside first and removed last, so that at every moment a whole folder, the
    old one or the new one, exists under this name or as the hidden ``.NAME.old`` beside it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o777 & ~umask)
    old = target.with_name(f".{target.name}.old")
    try:
        yield temporary
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(target, old)
        os.replace(temporary, target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
