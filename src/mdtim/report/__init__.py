"""A page that shows what was missing and how it was filled.

Data first, drawing second: :func:`summarize` makes a plain dict, :func:`render_html` a page of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdtim.files import atomic_path
from mdtim.report.render import render_html
from mdtim.report.summary import Summary, summarize

if TYPE_CHECKING:
    from mdtim.imputation import Imputation

__all__ = ["Summary", "render_html", "summarize", "write_report"]


def write_report(
    imputation: Imputation,
    path: str | PathLike[str],
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Write one self-contained HTML page with the filled gaps and their bands.

    The page needs no network and no scripts; it can be mailed, printed and opened from a folder.
    The file appears whole or not at all.

    Parameters
    ----------
    imputation : Imputation
    path : str or PathLike
        Where to write the page, by custom ending in ``.html``.
    evaluation : mapping, optional
        What hiding known values has shown, see :func:`summarize`; becomes tables on the page.

    Raises
    ------
    ValueError
        If the folder does not exist.
    """
    page = render_html(summarize(imputation, evaluation))
    with atomic_path(path) as temporary:
        # Names from a file in a broken encoding can hold halves of characters UTF-8 cannot write.
        temporary.write_bytes(page.encode("utf-8", "xmlcharrefreplace"))
