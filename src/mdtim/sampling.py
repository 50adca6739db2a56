"""Joint samples of a whole series: windows drawn in two turns that agree at their edges.

N rows, B windows, T steps, V variates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mdtim.inference import Predictor, windows_to_fill
from mdtim.panel import FloatArray, IntArray
from mdtim.series import DeviceSeries, WindowBatch
from mdtim.threads import fair_share, side_by_side
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
    device = predictor.device
    owner_N = torch.from_numpy(_owners(index, len(missing))).to(device)
    values, observed = series.values_NV.clone(), series.observed_NV.clone()
    # Counted from a series' own first window: what stands above it in the table plays no part.
    parity = (np.arange(len(index)) - np.searchsorted(index.ends, index.ends)) % 2

    def drawn_in(batch: WindowBatch) -> tuple[Tensor, Tensor]:
        owned_BT = owner_N[batch.rows_BT] == batch.rows_BT[:, :1]
        owned_BT[batch.count :] = False
        wanted = ~batch.observed_BTV & (owned_BT & batch.inside_BT)[..., None]
        drawn = predictor.sample_jointly(
            batch.values_BTV, batch.observed_BTV, wanted, batch.cell_keys(), sample
        )
        return batch.cells()[wanted], drawn[wanted]

    for turn in (0, 1):
        chosen = np.flatnonzero(parity == turn)
        known = DeviceSeries(values.clone(), observed.clone(), keys_N=series.keys_N)
        own = index.take(chosen)
        batches = known.batches(own, fair_share(len(own), batch_size, device), whole=True)
        for cells, drawn in side_by_side(drawn_in, batches, device):
            values.view(-1)[cells] = drawn
            observed.view(-1)[cells] = True
    return values.double().cpu().numpy()


def _owners(index: WindowIndex, num_rows: int) -> IntArray:
    """(N,) first row of the window in whose middle each row lies most, -1 where none covers it."""
    owner = np.full(num_rows, -1, dtype=np.int64)
    best = np.zeros(num_rows)
    weights = blend_weights(index.length)
    for start, end in zip(index.starts, index.ends, strict=True):
        stop = min(start + index.length, end)
        better = weights[: stop - start] > best[start:stop]
        owner[start:stop][better] = start
        best[start:stop] = np.maximum(best[start:stop], weights[: stop - start])
    return owner
