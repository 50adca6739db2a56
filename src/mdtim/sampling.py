"""Joint samples of a whole series: windows drawn in two turns that agree at their edges.

N rows, B windows, T steps, V variates.
"""

from __future__ import annotations

import numpy as np
import torch

from mdtim.inference import Predictor, windows_to_fill
from mdtim.panel import FloatArray, IntArray
from mdtim.series import DeviceSeries
from mdtim.windows import WindowIndex, blend_weights


def sample_series(
    predictor: Predictor,
    series: DeviceSeries,
    offsets: IntArray,
    length: int,
    *,
    batch_size: int,
    sample: int,
) -> FloatArray:
    """Draw all missing cells jointly, (N, V) standardized.

    Every cell belongs to the window in whose middle it lies. Every second window is drawn first,
    the others after, with the first draws as anchors: draws agree across the windows' edges.
    """
    missing = ~series.observed_NV.cpu().numpy()
    index = windows_to_fill(missing, offsets, length)
    owner = _owners(index, len(missing))
    values, observed = series.values_NV.clone(), series.observed_NV.clone()
    # Counted from a series' own first window: what stands above it in the table plays no part.
    parity = (np.arange(len(index)) - np.searchsorted(index.ends, index.ends)) % 2
    for turn in (0, 1):
        chosen = np.flatnonzero(parity == turn)
        known = DeviceSeries(values.clone(), observed.clone(), keys_N=series.keys_N)
        at = 0
        for batch in known.batches(index.take(chosen), batch_size, whole=True):
            window_B = torch.full((len(batch.rows_BT),), -2, device=predictor.device)  # no owner
            own = chosen[at : at + batch.count]
            window_B[: batch.count] = torch.from_numpy(own).to(predictor.device)
            at += batch.count
            owned = torch.from_numpy(owner).to(predictor.device)[batch.rows_BT] == window_B[:, None]
            wanted = ~batch.observed_BTV & (owned & batch.inside_BT)[..., None]
            drawn = predictor.sample_jointly(
                batch.values_BTV, batch.observed_BTV, wanted, batch.cell_keys(), sample
            )
            cells = batch.cells()[wanted]
            values.view(-1)[cells] = drawn[wanted]
            observed.view(-1)[cells] = True
    return values.double().cpu().numpy()


def _owners(index: WindowIndex, num_rows: int) -> IntArray:
    """(N,) the window in whose middle each row lies most, -1 where none covers it."""
    owner = np.full(num_rows, -1, dtype=np.int64)
    best = np.zeros(num_rows)
    weights = blend_weights(index.length)
    for window, (start, end) in enumerate(zip(index.starts, index.ends, strict=True)):
        stop = min(start + index.length, end)
        better = weights[: stop - start] > best[start:stop]
        owner[start:stop][better] = window
        best[start:stop] = np.maximum(best[start:stop], weights[: stop - start])
    return owner
