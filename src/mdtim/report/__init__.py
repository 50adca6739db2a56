"""A page that shows what was missing and how it was filled.

Data first, drawing second: :func:`summarize` makes plain data, `charts` draws the lines, `page`
puts both on one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from mdtim.atomic import atomic_path
from mdtim.evaluation import Evaluation
from mdtim.report.lines import Fill
from mdtim.report.summary import Summary, summarize, summarize_fill

if TYPE_CHECKING:
    from mdtim.imputation import Imputation

__all__ = ["Summary", "summarize", "write_report"]


def write_report(
    imputation: Imputation,
    path: str | PathLike[str],
    evaluation: Evaluation | None = None,
    *,
    name: str | None = None,
    notes: Sequence[str] | None = None,
) -> Summary:
    """Write one self-contained HTML page with the filled gaps and their bands.

    The page needs no network: it can be mailed, printed and opened from a folder. The file appears
    whole or not at all. It tells no time of writing: the same fill makes the same bytes.

    Parameters
    ----------
    imputation : Imputation
    path : str or PathLike
        Where to write the page, by custom ending in ``.html``.
    evaluation : Evaluation, optional
        What hiding known values has shown; becomes the last part of the page.
    name : str, optional
        Of the table, such as that of its file; goes into the title.
    notes : sequence of str, optional
        What the owner of the table should know, above all else on the page; without, how the
        table was read.

    Returns
    -------
    summary : Summary
        What the page says, as plain data.

    Raises
    ------
    ValueError
        If the folder does not exist.
    """
    from mdtim.report.page import render_page  # Bokeh takes half a second to load

    fill = Fill.of(imputation)
    summary = summarize_fill(imputation, fill, evaluation, name, notes)
    page = render_page(summary, fill)
    with atomic_path(path) as temporary:
        # Names from a file in a broken encoding can hold halves of characters UTF-8 cannot write.
        temporary.write_bytes(page.encode("utf-8", "xmlcharrefreplace"))
    return summary
