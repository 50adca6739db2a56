"""Writing a file or a folder whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_folder(path: str | os.PathLike[str]) -> Path:
    """The path without links, if there is a folder to write it to."""
    target = Path(os.path.realpath(Path(path).expanduser()))
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent} to write {target.name} to; create it")
    return target


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Offer a temporary path in the same folder, for a file or a folder, to be renamed at the end.

    On an error what was written is removed and an existing target stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "report.html"
    >>> with atomic_path(target) as temporary:
    ...     _ = temporary.write_text("done")
    >>> target.read_text()
    'done'
    """
    # A link stays a link: what it points to is replaced.
    target = check_folder(path)
    token = secrets.token_hex(4)
    # Some writers go by the suffix, hence the name last.
    temporary = target.with_name(f".{token}-{target.name}")
    former = target.with_name(f".{token}-former-{target.name}")
    try:
        yield temporary
        if temporary.is_dir() and target.is_dir():
            os.replace(target, former)  # a folder does not replace one that has files in it
        elif target.is_dir():
            raise ValueError(f"{target} is a folder; name a file to write to")
        elif target.exists() and temporary.is_file():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        if former.exists() and not target.exists():
            os.replace(former, target)
        raise
    finally:
        for leftover in (temporary, former):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
