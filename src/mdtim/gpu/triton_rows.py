"""Triton kernels over rows of states: norm, modulation, dropout, residual, GELU, what is alike.

:mod:`mdtim.gpu.row_passes` launches them, :mod:`mdtim.gpu.dropout` defines the dropout. A program
takes a chunk of one window's rows, tile by tile, and leaves its sums over them as float32 parts:
added in a fixed order later, so that a run repeats to the bit.

Shapes: B windows, R rows of a tile, D width, F width inside the MLP.
"""

from __future__ import annotations

from mdtim.gpu.triton_compiler import HAS_TRITON
from mdtim.gpu.triton_compiler import jit as _jit

if HAS_TRITON:
    import triton.language as tl


@_jit
def _scramble_word(x: tl.tensor) -> tl.tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@_jit
def _dropout_keys(
    seed: tl.tensor, first_row: tl.tensor, SITE: tl.constexpr, D: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Two words, for places counted from the first row of this launch."""
    both = tl.load(seed)
    low = (both & 0xFFFFFFFF).to(tl.uint32)
    high = ((both >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first = _scramble_word(low + tl.full((), SITE * 0x9E3779B9 & 0xFFFFFFFF, tl.uint32))
    second = _scramble_word(high ^ first)
    return first + first_row.to(tl.uint32) * D, second


@_jit
def _dropout_factor(
    first: tl.tensor, second: tl.tensor, index: tl.tensor,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """0 where dropped, 1 / (1 - p) where kept; seven integer instructions an element."""
    x = index.to(tl.uint32) + first
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15) ^ second) * 0x846CA68B
    return tl.where(x >= THRESHOLD, KEPT, 0.0)


@_jit
def _vector(
    modulation: tl.tensor, window: tl.tensor, stride: tl.tensor, SLOT: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(1, D) one modulation vector of a window; windows are `stride` elements apart."""
    column = tl.arange(0, BLOCK)
    address = modulation + window * stride + SLOT * D + column
    return tl.load(address, mask=column < D, other=0.0).to(tl.float32)[None, :]


@_jit
def _place(
    window: tl.tensor, first: tl.tensor, window_rows: tl.tensor,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(R, D) offsets of a tile in memory, and which of them the window holds."""
    row_R = first + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    # 64 bits: a large batch holds more than 2^31 elements.
    start_R = (window.to(tl.int64) * window_rows + row_R) * D
    inside = (row_R < window_rows)[:, None]
    if BLOCK != D:
        inside = inside & (column < D)[None, :]
    return start_R[:, None] + column[None, :], inside


@_jit
def _norm(
    value: tl.tensor, inside: tl.tensor, D: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Rows with mean 0 and variance 1, and the (R, 1) factor that made them so."""
    centred = value - (tl.sum(value, 1) / D)[:, None]
    if BLOCK != D:
        centred = tl.where(inside, centred, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-5)[:, None]
    return centred * factor, factor


@_jit
def _store_sum(
    sums: tl.tensor, tile: tl.tensor, SLOT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    SUMS: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.arange(0, BLOCK)
    address = sums + (tl.program_id(0).to(tl.int64) * SUMS + SLOT) * D + column
    tl.store(address, tl.sum(tile, 0), mask=column < D)


@_jit
def forward_kernel(
    h: tl.tensor, y: tl.tensor, modulation: tl.tensor, seed: tl.tensor,
    out: tl.tensor, x: tl.tensor,
    window_rows: tl.tensor, first_row: tl.tensor, window_stride: tl.tensor,
    GATE: tl.constexpr, SHIFT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr,
) -> None:  # fmt: skip
    """Add a gated update where there is a gate, normalize where there is a shift."""
    num_chunks = tl.cdiv(window_rows, CHUNK)
    window = tl.program_id(0) // num_chunks
    begin = tl.program_id(0) % num_chunks * CHUNK
    if GATE >= 0:
        gate = _vector(modulation, window, window_stride, GATE, D, BLOCK)
        if THRESHOLD > 0:
            key, other_key = _dropout_keys(seed, first_row, GATE, D)
    if SHIFT >= 0:
        shift = _vector(modulation, window, window_stride, SHIFT, D, BLOCK)
        scale = _vector(modulation, window, window_stride, SHIFT + 1, D, BLOCK) + 1.0
    for start in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        at, inside = _place(window, begin + start, window_rows, D, BLOCK, ROWS)
        value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        if GATE >= 0:
            update = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            if THRESHOLD > 0:
                update *= _dropout_factor(key, other_key, at, THRESHOLD, KEPT)
            stored = (value + gate * update).to(h.dtype.element_ty)
            tl.store(out + at, stored, mask=inside)
            value = stored.to(tl.float32)  # as the backward pass will make it again
        if SHIFT >= 0:
            normal, _ = _norm(value, inside, D, BLOCK)
            tl.store(x + at, (normal * scale + shift).to(x.dtype.element_ty), mask=inside)


@_jit
def add_backward_kernel(
    grad: tl.tensor, y: tl.tensor, modulation: tl.tensor, seed: tl.tensor,
    dy: tl.tensor, sums: tl.tensor,
    window_rows: tl.tensor, first_row: tl.tensor, window_stride: tl.tensor,
    GATE: tl.constexpr, SUMS: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr, THRESHOLD: tl.constexpr, KEPT: tl.constexpr,
) -> None:  # fmt: skip
    """Backward of the forward kernel's addition alone; sums for the gate and, next, the update."""
    num_chunks = tl.cdiv(window_rows, CHUNK)
    window = tl.program_id(0) // num_chunks
    begin = tl.program_id(0) % num_chunks * CHUNK
    gate = _vector(modulation, window, window_stride, GATE, D, BLOCK)
    if THRESHOLD > 0:
        key, other_key = _dropout_keys(seed, first_row, GATE, D)
    sum_gate = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        at, inside = _place(window, begin + start, window_rows, D, BLOCK, ROWS)
        d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        update = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        if THRESHOLD > 0:
            d *= _dropout_factor(key, other_key, at, THRESHOLD, KEPT)
        sum_gate += d * update
        d *= gate
        sum_bias += d
        tl.store(dy + at, d.to(dy.dtype.element_ty), mask=inside)
    _store_sum(sums, sum_gate, GATE, D, BLOCK, SUMS)
    _store_sum(sums, sum_bias, GATE + 1, D, BLOCK, SUMS)


@_jit
def normalize_backward_kernel(
    dx: tl.tensor, grad: tl.tensor, h: tl.tensor, y: tl.tensor, modulation: tl.tensor,
    seed: tl.tensor, dh: tl.tensor, dy: tl.tensor, x: tl.tensor, sums: tl.tensor,
    window_rows: tl.tensor, first_row: tl.tensor, window_stride: tl.tensor,
    GATE: tl.constexpr, SHIFT: tl.constexpr, SUMS: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr, THRESHOLD: tl.constexpr, KEPT: tl.constexpr,
) -> None:  # fmt: skip
    """Backward of the forward kernel's norm and, where there is a gate, of its addition."""
    num_chunks = tl.cdiv(window_rows, CHUNK)
    window = tl.program_id(0) // num_chunks
    begin = tl.program_id(0) % num_chunks * CHUNK
    shift = _vector(modulation, window, window_stride, SHIFT, D, BLOCK)
    scale = _vector(modulation, window, window_stride, SHIFT + 1, D, BLOCK) + 1.0
    if GATE >= 0:
        gate = _vector(modulation, window, window_stride, GATE, D, BLOCK)
        sum_gate = tl.zeros((ROWS, BLOCK), tl.float32)
        if THRESHOLD > 0:
            key, other_key = _dropout_keys(seed, first_row, GATE, D)
    sum_shift = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_scale = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, CHUNK, ROWS, num_stages=STAGES):
        at, inside = _place(window, begin + start, window_rows, D, BLOCK, ROWS)
        value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dx + at, mask=inside, other=0.0).to(tl.float32)
        if grad is not None:
            past = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if GATE >= 0:
            update = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            if THRESHOLD > 0:
                update *= _dropout_factor(key, other_key, at, THRESHOLD, KEPT)
            value = (value + gate * update).to(h.dtype.element_ty).to(tl.float32)
        normal, factor = _norm(value, inside, D, BLOCK)
        if x is not None:
            tl.store(x + at, (normal * scale + shift).to(x.dtype.element_ty), mask=inside)
        sum_shift += d
        sum_scale += d * normal
        d *= scale
        mean = (tl.sum(d, 1) / D)[:, None]
        slope = (tl.sum(d * normal, 1) / D)[:, None]
        d = factor * (d - mean - normal * slope)
        if grad is not None:
            d += past
        tl.store(dh + at, d.to(dh.dtype.element_ty), mask=inside)
        if GATE >= 0:
            sum_gate += d * update
            d *= gate
            if THRESHOLD > 0:
                d *= _dropout_factor(key, other_key, at, THRESHOLD, KEPT)
            tl.store(dy + at, d.to(dy.dtype.element_ty), mask=inside)
    _store_sum(sums, sum_shift, SHIFT, D, BLOCK, SUMS)
    _store_sum(sums, sum_scale, SHIFT + 1, D, BLOCK, SUMS)
    if GATE >= 0:
        _store_sum(sums, sum_gate, GATE, D, BLOCK, SUMS)


@_jit
def gelu_factor(x: tl.tensor) -> tl.tensor:
    """GELU(x) / x: the sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    inner = x * (1.5957691216057308 + 0.07135481627260025 * x * x)
    return 1.0 / (1.0 + tl.exp2(inner * -1.4426950408889634))


@_jit
def gelu_slope(x: tl.tensor, s: tl.tensor) -> tl.tensor:
    """Derivative of GELU, given its factor s."""
    inner = x * (1.5957691216057308 + 0.21406444881780076 * x * x)
    return s * (1.0 + inner * (1.0 - s))


@_jit
def gelu_kernel(
    pre: tl.tensor, act: tl.tensor, num_rows: tl.tensor, F: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """GELU of every element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_rows.to(tl.int64) * F  # F is even enough for loads of 16 bytes
    x = tl.load(pre + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(act + at, (x * gelu_factor(x)).to(act.dtype.element_ty), mask=inside)


@_jit
def gelu_backward_kernel(
    dact: tl.tensor, pre: tl.tensor, act: tl.tensor, sums: tl.tensor, num_rows: tl.tensor,
    F: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Backward of GELU in place of its gradient, its output once more, and sums over rows."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, CHUNK, ROWS):
        row_R = tl.program_id(0) * CHUNK + start + tl.arange(0, ROWS)
        at = row_R.to(tl.int64)[:, None] * F + column[None, :]
        inside = (row_R < num_rows)[:, None]
        if F % BLOCK != 0:
            inside = inside & (column < F)[None, :]
        x = tl.load(pre + at, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dact + at, mask=inside, other=0.0).to(tl.float32)
        s = gelu_factor(x)
        tl.store(act + at, (x * s).to(act.dtype.element_ty), mask=inside)
        d *= gelu_slope(x, s)
        tl.store(dact + at, d.to(dact.dtype.element_ty), mask=inside)
        total += d
    address = sums + tl.program_id(0).to(tl.int64) * F + column
    tl.store(address, tl.sum(total, 0), mask=column < F)


@_jit
def add_level_kernel(
    h: tl.tensor, level: tl.tensor, length: tl.tensor, num_columns: tl.tensor,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Add what all steps of a window have in common to each of them, in place."""
    num_tiles = tl.cdiv(length, ROWS)
    window = (tl.program_id(0) // num_tiles).to(tl.int64)
    step_R = tl.program_id(0) % num_tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = column < num_columns
    inside = (step_R < length)[:, None] & within[None, :]
    at = h + (window * length + step_R)[:, None] * num_columns + column[None, :]
    update = tl.load(level + window * num_columns + column, mask=within, other=0.0)
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32) + update.to(tl.float32)[None, :]
    tl.store(at, value.to(h.dtype.element_ty), mask=inside)


@_jit
def gather_kernel(
    x: tl.tensor, rows: tl.tensor, out: tl.tensor, num_rows: tl.tensor,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Rows by their numbers."""
    place_R = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    row_R = tl.load(rows + place_R, mask=place_R < num_rows, other=0)
    inside = (place_R < num_rows)[:, None] & (column < D)[None, :]
    value = tl.load(x + row_R[:, None] * D + column[None, :], mask=inside, other=0.0)
    tl.store(out + place_R[:, None] * D + column[None, :], value, mask=inside)
