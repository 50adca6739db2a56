"""Training steps and imputation on a GPU (or a CPU), beside the same network run otherwise.

Medians after warm-up, all variants in one run, with the measured rate of a large bf16 matrix
product beside them, so that the share of the peak can be read.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mdtim.bench.environment import commit, device_name, versions
from mdtim.config import ModelConfig, preset
from mdtim.inference import Predictor, inference_batch
from mdtim.learning.lessons import TrainingData
from mdtim.learning.training import Trainer
from mdtim.masks import MaskMix
from mdtim.network import FactorizedDiT
from mdtim.runtime import HostCopies, resolve_device
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.threads import fair_share, side_by_side, threads_for_batches
from mdtim.wanted import Wanted
from mdtim.windows import every_window

Variant = Literal["mdtim", "launched", "unfused", "sdpa", "eager"]
"""This implementation as it is used; without CUDA graphs; with blocks of PyTorch's operators, and
then with scaled_dot_product_attention too; and that without CUDA graphs: plain PyTorch."""

SIDE_BY_SIDE: tuple[Variant, ...] = ("mdtim", "sdpa", "eager")


@dataclass(frozen=True)
class SpeedRow:
    """One measurement."""

    case: str
    variant: str
    size: str
    window: int
    variates: int
    batch: int
    draws: int
    milliseconds: float
    """Median of one training step, or of imputing all windows of the case."""
    tflops: float
    """Arithmetic of the network's matrix products over that time."""
    peak_memory_gb: float
    matmul_tflops: float
    """Measured rate of a large bf16 (CPU: float32) matrix product on the same device."""
    device: str
    versions: str
    commit: str


def network_flops(config: ModelConfig, window: int, variates: int) -> float:
    """Multiply-adds times two of one window's forward pass: linear layers and attention."""
    net = config.network
    cells = window * variates
    per_block = 2 * net.width**2 * (4 + 2 * net.mlp_ratio)
    attention = 4 * net.width * (window + variates)
    ends = 2 * net.width * (net.embedding_width + net.width + config.tokenizer.num_outputs)
    return cells * (net.num_layers * (2 * per_block + attention) + ends)


def matmul_rate(device: torch.device) -> float:
    """TFLOP/s of a large matrix product on random data."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn((size, size), device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (1e9 * median_ms(lambda: a @ b, device, repeats=20))


def median_ms(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of a call in milliseconds, after three calls of warm-up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def random_series(rows: int, variates: int, device: torch.device) -> DeviceSeries:
    """A random walk per variate: never zeros, which can run faster than data does."""
    walk = np.cumsum(np.random.default_rng(0).normal(size=(rows, variates)), axis=0)
    return DeviceSeries.put((walk / walk.std(axis=0)).astype(np.float32), device)


def set_up(network: FactorizedDiT, variant: Variant) -> FactorizedDiT:
    """Choose how a network runs."""
    fused = variant in ("mdtim", "launched")
    network.fused_embedding = network.fused_norm = network.fused_readout = fused
    for block in network.blocks:
        block.attention = "sdpa" if variant in ("sdpa", "eager") else "auto"
        block.fused = variant != "unfused"
    return network


def make_trainer(
    config: ModelConfig, window: int, variates: int, variant: Variant, device: torch.device
) -> Trainer:
    """A trainer on random series of the given width."""
    series = random_series(8 * window + 4_000, variates, device)
    windows = DeviceWindows.put(every_window(np.array([0, len(series.values_NV)]), window), device)
    network = FactorizedDiT(config.network, config.tokenizer, variates).to(device)
    set_up(network, variant)
    hidden = torch.zeros((len(windows), window, variates), dtype=torch.bool, device=device)
    masks = MaskMix.from_config(config.diffusion)
    data = TrainingData(series, windows, windows, hidden, masks, config.training.batch_size)
    return Trainer(
        network.train(),
        config,
        data,
        0,
        replay_steps=variant not in ("launched", "eager"),
    )


def training_ms(trainer: Trainer, repeats: int) -> float:
    """Median time of a training step."""

    def step() -> None:
        trainer._step(0.5)
        trainer.progress.step += 1

    with trainer.stream():
        for _ in range(4):  # until the step is captured
            step()
        return median_ms(step, trainer.device, repeats)


def measure_training(
    case: str,
    size: str,
    window: int,
    variates: int,
    batch: int,
    variant: Variant,
    device: torch.device,
    rate: float,
    repeats: int = 20,
) -> SpeedRow:
    """Time training steps of one case."""
    config = preset(size).change(batch_size=batch)
    _reset_memory(device)
    trainer = make_trainer(config, window, variates, variant, device)
    milliseconds = training_ms(trainer, repeats)
    flops = 3 * batch * network_flops(config, window, variates)
    return _row(case, variant, size, window, variates, batch, 0, milliseconds, flops, device, rate)


def measure_imputing(
    case: str,
    size: str,
    window: int,
    variates: int,
    num_windows: int,
    draws: int,
    variant: Variant,
    device: torch.device,
    rate: float,
    repeats: int,
) -> SpeedRow:
    """Time imputing the hidden half of many windows' cells, from device to filled host."""
    config = preset(size).change(num_draws=draws)
    if draws > 1:
        config = config.change(interpolated=False)
    _reset_memory(device)
    series = random_series(num_windows + window - 1, variates, device)
    index = every_window(np.array([0, len(series.values_NV)]), window)
    windows = DeviceWindows.put(index, device)
    batch = series.gather(windows.starts, windows.ends, window)
    visible = torch.rand(batch.values_BTV.shape, device=device) < 0.5
    keys = batch.cell_keys()
    network = FactorizedDiT(config.network, config.tokenizer, variates).to(device).eval()
    set_up(network, variant)
    gpu = device.type == "cuda"
    with threads_for_batches(device):
        fitting = inference_batch(series, window, config)
        most = 1024 if gpu else fair_share(num_windows, fitting, device)
    part = -(-num_windows // -(-num_windows // most))
    parts = [slice(begin, begin + part) for begin in range(0, num_windows, part)]
    predictor = Predictor(network, config)

    def impute() -> None:
        filled = HostCopies(device)
        # How many are wanted is asked before there is work that an answer would have to wait for.
        wanted = [Wanted.find(~visible[cut]) for cut in parts]
        for values in side_by_side(fill, zip(parts, wanted, strict=True), device):
            filled.send(values)
        filled.collect()

    def fill(part: tuple[slice, Wanted | None]) -> Tensor:
        cut, cells = part
        probs, scale = predictor.probs(batch.values_BTV[cut], visible[cut], keys[cut], cells)
        center, half = (
            x.expand(visible[cut].shape)[..., None] for x in (scale.center_B1V, scale.half_B1V)
        )
        if cells is not None:
            center, half = cells.pick(center), cells.pick(half)
        return (probs @ network.centers)[..., None] * half + center

    with threads_for_batches(device):
        milliseconds = median_ms(impute, device, repeats)
    flops = draws * num_windows * network_flops(config, window, variates)
    return _row(
        case, variant, size, window, variates, num_windows, draws, milliseconds, flops, device, rate
    )


def _reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _row(
    case: str,
    variant: str,
    size: str,
    window: int,
    variates: int,
    batch: int,
    draws: int,
    milliseconds: float,
    flops: float,
    device: torch.device,
    rate: float,
) -> SpeedRow:
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0
    return SpeedRow(
        case=case,
        variant=variant,
        size=size,
        window=window,
        variates=variates,
        batch=batch,
        draws=draws,
        milliseconds=round(milliseconds, 3),
        tflops=float(f"{flops / milliseconds / 1e9:.4g}"),
        peak_memory_gb=round(memory, 2),
        matmul_tflops=float(f"{rate:.4g}"),
        device=device_name(device),
        versions=versions(),
        commit=commit(),
    )


TRAINING_CASES = (
    ("ETTh training step", 7),
    ("Weather training step", 21),
    ("Energy training step", 28),
)
ENERGY_TEST_WINDOWS = 1_927
SWEEP_LENGTHS = tuple(2**power for power in range(3, 13))
SWEEP_WIDTHS = tuple(2**power for power in range(10))
_SWEEP_CELLS = 2**17  # of one measurement, so that time per cell can be compared


def run_sweep(
    device: torch.device,
    rate: float,
    lengths: tuple[int, ...] = SWEEP_LENGTHS,
    widths: tuple[int, ...] = SWEEP_WIDTHS,
    num_cells: int = _SWEEP_CELLS,
) -> Iterator[SpeedRow]:
    """Impute about as many cells in windows of 8 to 4,096 steps, and of 1 to 512 variates."""
    shapes = [("window length", length, 8) for length in lengths]
    shapes += [("variates", 48, width) for width in widths]
    for what, window, variates in shapes:
        num_windows = max(1, num_cells // (window * variates))
        case = f"{what} {window if what == 'window length' else variates}"
        yield measure_imputing(
            case, "small", window, variates, num_windows, 1, "mdtim", device, rate, repeats=3
        )


def run_speed(
    device_name: str = "auto",
    variants: tuple[Variant, ...] = SIDE_BY_SIDE,
    on_row: Callable[[SpeedRow], None] = lambda row: None,
) -> list[SpeedRow]:
    """Measure all cases that fit the device: the large network on a GPU, the small one on a CPU."""
    device = resolve_device(device_name)
    rate = matmul_rate(device)
    gpu = device.type == "cuda"
    rows: list[SpeedRow] = []

    def add(row: SpeedRow) -> None:
        rows.append(row)
        on_row(row)

    if not gpu:
        for variant in ("mdtim", "sdpa"):
            add(
                measure_training("ETTh training step", "small", 48, 7, 16, variant, device, rate, 5)
            )
        add(measure_imputing("ETTh imputing", "small", 48, 7, 256, 1, "mdtim", device, rate, 3))
        for row in run_sweep(device, rate, SWEEP_LENGTHS[:7:3], SWEEP_WIDTHS[:7:3], 2**12):
            add(row)
        return rows
    for size, draws in (("large", 1), ("large", 10), ("small", 10)):
        name = f"Energy test set, M = {draws}"
        # A network alone is not replayed.
        beside: tuple[Variant, ...] = ("mdtim", "sdpa") if draws == 1 else ("mdtim",)
        repeats = 20 if draws == 1 else 5  # a short one says little
        for variant in beside:
            add(
                measure_imputing(
                    name, size, 48, 28, ENERGY_TEST_WINDOWS, draws, variant, device, rate, repeats
                )
            )
    for row in run_sweep(device, rate):
        add(row)
    for variant in variants:
        for case, variates in TRAINING_CASES:
            add(measure_training(case, "large", 48, variates, 256, variant, device, rate))
    return rows


def main() -> None:
    """Run without the command line's dependencies.

    `python -m mdtim.bench.speed [device] [variant ...]`
    """
    device, *names = sys.argv[1:] or ["auto"]
    known = get_args(Variant)
    if unknown := set(names) - set(known):
        raise ValueError(f"unknown variants {sorted(unknown)}; choose from {list(known)}")
    run_speed(
        device,
        tuple(variant for variant in known if variant in names) or SIDE_BY_SIDE,
        on_row=lambda row: print(json.dumps(asdict(row)), flush=True),
    )


if __name__ == "__main__":
    main()
