"""Every kernel and matrix product of one block on a GPU: time, traffic, and share of the floor.

The floor of a kernel is the longer of its traffic at the measured bandwidth and its arithmetic at
the measured matrix rate. Run with `python -m mdtim.bench.kernels`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from mdtim.bench.speed import TRAINING_CASES, matmul_rate
from mdtim.gpu import row_passes
from mdtim.gpu.row_passes import GATE_A, Rows
from mdtim.gpu.triton_attention import attend, attend_backward
from mdtim.kernels import rope_table
from mdtim.mlp import back_to_gelu, up_and_gelu
from mdtim.runtime import resolve_device


@dataclass(frozen=True)
class BlockShape:
    """One block at one size."""

    num_windows: int = 256
    num_steps: int = 48
    num_variates: int = 7
    width: int = 256
    num_heads: int = 16
    mlp_ratio: int = 4
    dropout: float = 0.2

    @property
    def num_rows(self) -> int:
        """R."""
        return self.num_windows * self.num_steps * self.num_variates


@dataclass(frozen=True)
class Step:
    """One kernel of a block."""

    name: str
    run: Callable[[], object]
    traffic: int
    """Row tensors (R, D) that it reads and writes."""
    flops: float = 0.0


@dataclass(frozen=True)
class KernelRow:
    """One measurement."""

    case: str
    kernel: str
    microseconds: float
    gigabytes_per_second: float
    tflops: float
    share_of_floor: float
    """Of the time: 1 is a kernel at its floor."""


def block_steps(shape: BlockShape, device: torch.device, dtype: torch.dtype) -> Iterator[Step]:
    """All steps of a block's forward and backward pass in training, with both ways to attend."""
    num_rows, width, inner = shape.num_rows, shape.width, shape.mlp_ratio * shape.width
    cells = (shape.num_windows, shape.num_steps, shape.num_variates)
    rows = Rows(shape.num_windows, shape.num_steps * shape.num_variates, width, shape.dropout)

    def random(*size: int) -> Tensor:
        return torch.randn(size, device=device).to(dtype)

    h, y, grad, dx, out = (random(num_rows, width) for _ in range(5))
    qkv, pre = random(num_rows, 3 * width), random(num_rows, inner)
    modulation, seed = random(shape.num_windows, 6, width), torch.tensor(1, device=device)
    sums = rows.new_sums(h)

    def product(name: str, columns: int, depth: int, a: Tensor) -> Step:
        weight = random(columns, depth)
        flops = 2.0 * num_rows * columns * depth
        return Step(name, lambda: a @ weight.t(), (columns + depth) // width, flops)

    def weight_product(name: str, a: Tensor, b: Tensor) -> Step:
        flops = 2.0 * num_rows * a.shape[1] * b.shape[1]
        return Step(name, lambda: a.t() @ b, (a.shape[1] + b.shape[1]) // width, flops)

    def attention(length: int, over_time: bool) -> Iterator[Step]:
        axis = "time" if over_time else "variates"
        table = rope_table(length, width // shape.num_heads, h)
        flops = 4.0 * num_rows * length * width
        x, g, o = qkv.view(*cells, -1), grad.view(*cells, -1), torch.empty_like(h)
        heads = shape.num_heads
        yield Step(f"attention over {axis}", lambda: attend(x, table, heads, over_time), 4, flops)
        yield Step(
            f"attention over {axis}, backward",
            lambda: attend_backward(g, x, table, o, heads, over_time),
            8,
            3 * flops,
        )

    yield Step("norm", lambda: row_passes.normalize(rows, h, modulation), 2)
    yield product("qkv", 3 * width, width, h)
    yield from attention(shape.num_steps, True)
    yield from attention(shape.num_variates, False)
    yield product("out", width, width, h)
    add_norm = (rows, h, y, modulation, seed)
    yield Step(
        "add and norm", lambda: row_passes.add_and_normalize(*add_norm, gate=GATE_A, out=out), 4
    )
    up, bias = random(inner, width), random(inner)
    yield Step(
        "up and GELU",
        lambda: up_and_gelu(h, up, bias),
        1 + 2 * shape.mlp_ratio,
        2.0 * num_rows * inner * width,
    )
    yield product("down", width, inner, pre)
    yield Step("add", lambda: row_passes.add(*add_norm, out), 3)

    add_back = (rows, grad, y, modulation, seed, sums)
    yield Step("add, backward", lambda: row_passes.add_backward(*add_back), 3)
    down = random(width, inner)
    yield Step(
        "down and GELU, backward, and down, weight",
        lambda: back_to_gelu(grad, pre, down),
        1 + 2 * shape.mlp_ratio,
        4.0 * num_rows * inner * width,
    )
    yield product("up, backward", width, inner, pre)
    add_norm_back = (rows, dx, grad, h, y, modulation, seed, sums)
    yield Step(
        "add and norm, backward", lambda: row_passes.add_and_normalize_backward(*add_norm_back), 7
    )
    yield weight_product("up, weight", pre, h)
    yield product("out, backward", width, width, grad)
    yield weight_product("out, weight", grad, h)
    yield product("qkv, backward", width, 3 * width, qkv)
    norm_back = (rows, dx, grad, h, modulation, sums)
    yield Step(
        "norm, backward",
        lambda: row_passes.normalize_backward(*norm_back, dh_RD=out, x_RD=torch.empty_like(h)),
        5,
    )
    yield weight_product("qkv, weight", qkv, h)


def bandwidth(device: torch.device) -> float:
    """GB/s of copying 2 GB: read and written bytes."""
    source = torch.empty(2**30, dtype=torch.int16, device=device).random_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e6 * _median_ms(lambda: target.copy_(source)))


def measure(
    case: str, shape: BlockShape, device: torch.device, peak: float, rate: float
) -> Iterator[KernelRow]:
    """Time the steps of a block, beside what bandwidth `peak` and matrix rate `rate` allow."""
    total = floor_of_all = 0.0
    for step in block_steps(shape, device, torch.bfloat16):
        milliseconds = _median_ms(step.run)
        nbytes = 2.0 * step.traffic * shape.num_rows * shape.width
        floor = max(nbytes / (1e6 * peak), step.flops / (1e9 * rate))
        # A block attends along one axis, a layer along both.
        count = 1 if step.name.startswith("attention") else 2
        total, floor_of_all = total + count * milliseconds, floor_of_all + count * floor
        yield KernelRow(
            case,
            step.name,
            round(1e3 * milliseconds, 1),
            round(nbytes / (1e6 * milliseconds)),
            round(step.flops / (1e9 * milliseconds), 1),
            round(floor / milliseconds, 3),
        )
    yield KernelRow(
        case, "layer of two blocks", round(1e3 * total, 1), 0, 0, round(floor_of_all / total, 3)
    )


def _median_ms(run: Callable[[], object]) -> float:
    """Median time on a GPU with cold caches."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=5, rep=30, return_mode="median"))


def main() -> None:
    """Measure the training cases and print one JSON object per line."""
    device = resolve_device("cuda")
    peak, rate = bandwidth(device), matmul_rate(device)
    print(json.dumps({"bandwidth_gb_s": round(peak), "matmul_tflops": round(rate, 1)}))
    for case, variates in TRAINING_CASES:
        for row in measure(case, BlockShape(num_variates=variates), device, peak, rate):
            print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
