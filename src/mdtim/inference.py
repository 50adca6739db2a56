"""Windows to distributions to cells: one pass, M draws, blended overlaps.

B windows, T steps, V variates, K output bins, C missing cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mdtim.blending import Parts
from mdtim.calibration import OPEN, Calibration, Places
from mdtim.closed_form.excess import Excess
from mdtim.closed_form.guesses import Neighbours
from mdtim.closed_form.rowwise import RowModel
from mdtim.closed_form.sides import Sides
from mdtim.closed_form.stillness import correction, movement
from mdtim.config import ModelConfig
from mdtim.diffusion import reverse_step, tokenize
from mdtim.distribution import BinDistribution
from mdtim.network import FactorizedDiT, Tokens
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.readout import cell_probs, label_blur
from mdtim.runtime import HostCopies, free_memory, keyed_uniform, precision
from mdtim.series import DeviceSeries, WindowBatch, whole_batch
from mdtim.stacking import Stack, StackCells
from mdtim.threads import fair_share, side_by_side
from mdtim.tokenizer import Tokenizer, WindowScale
from mdtim.wanted import Wanted
from mdtim.windows import WindowIndex, blend_weights, covering_windows

_JOINT_STREAM = 2**40
"""First stream of random numbers of the joint samples; the draws have the small numbers."""

LEAST_SPREAD = 0.2
"""Standard deviation, in bins, that a cell drawn jointly has at least."""

OnWindows = Callable[[int, int], None]
"""Called with (windows done, windows in all)."""


class Predictor:
    """A trained network with all it needs to read windows.

    Parameters
    ----------
    network : FactorizedDiT
        In evaluation mode, on its device.
    config : ModelConfig
    seed : int
        Key of the draws; the same cell is drawn alike in any batch and on any device.
    stack : Stack, optional
        Moves the distributions, and with them the filled values, towards what needs no network.
    calibration : Calibration, optional
        Corrects the distributions; the filled values are read off before it.
    season : int, optional
        Steps after which the table repeats itself, where the stack is to know.
    rows : RowModel, optional
        The law of the table's rows, where the stack is to know.
    max_windows : int, optional
        Draws of few windows are put into one batch, up to this many windows.
    """

    def __init__(
        self,
        network: FactorizedDiT,
        config: ModelConfig,
        seed: int = 0,
        *,
        stack: Stack | None = None,
        calibration: Calibration | None = None,
        season: int | None = None,
        rows: RowModel | None = None,
        max_windows: int | None = None,
    ) -> None:
        self.network = network
        self.config = config
        self.stack = stack
        self.calibration = calibration
        self.season = season
        self.rows = rows
        self.max_windows = max_windows
        self.tokenizer = Tokenizer(config.tokenizer)
        self.seed = seed
        self.device = network.centers.device

    @torch.no_grad()
    def probs(
        self,
        values_BTV: Tensor,
        visible_BTV: Tensor,
        keys_BTV: Tensor,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, WindowScale]:
        """Average the predicted distributions of M tokenizations.

        Returns
        -------
        probs_BTVK : float32; (B, N, 1, K) where only some cells are wanted
        scale : WindowScale
        """
        # Scale, level and guesses are the same in every draw, and found once.
        tokens, scale = self._tokenize(values_BTV, visible_BTV, None, None)
        if not self.config.draws_tokens:
            return self._network_distribution(tokens, wanted), scale
        num_draws, count = self.config.inference.num_draws, max(1, len(values_BTV))
        together = max(1, (self.max_windows or count) // count)
        total: Tensor | None = None
        for begin in range(0, num_draws, together):
            draws = range(begin, min(begin + together, num_draws))
            drawn = [
                self.tokenizer.draw(
                    tokens.coordinates_BTV, keyed_uniform(self.seed, draw, keys_BTV) - 0.5
                )
                for draw in draws
            ]
            in_all = None if wanted is None else wanted.repeat(len(draws))
            probs = self._network_distribution(tokens.drawn(drawn), in_all)
            # One after the other: the sum does not depend on how many came together.
            for one in probs.chunk(len(draws)):
                total = one if total is None else total + one
        assert total is not None
        return total / num_draws, scale

    def _tokenize(
        self, values: Tensor, visible: Tensor, noise: Tensor | None, scale: WindowScale | None
    ) -> tuple[Tokens, WindowScale]:
        # Without matched time: σ = 0, a finished denoising, as the paper's authors run it.
        time = None if self.config.diffusion.matched_time else values.new_zeros(len(values))
        return tokenize(
            self.tokenizer,
            values,
            visible,
            prior=self.config.network.prior,
            relations=self.network.relations,
            time_B=time,
            noise_BTV=noise,
            scale=scale,
        )

    def _network_distribution(self, tokens: Tokens, wanted: Wanted | None = None) -> Tensor:
        with precision(self.device):
            if not self.network.config.continuous:
                return cell_probs(self.network, tokens, wanted)
            output = self.network(tokens)
        if wanted is not None:
            output = wanted.pick(output)
        # One number per cell: the two bins around it, with its mean.
        position = self.tokenizer.target(output.squeeze(-1), None)
        index = torch.arange(self.tokenizer.num_outputs, device=position.device)
        return (1 - (position[..., None] - index).abs()).clamp_min(0)

    def distribution(self, probs_BTVK: Tensor, scale: WindowScale) -> BinDistribution:
        """Attach the window's scale: bins in standardized units."""
        return BinDistribution(probs_BTVK, *self._grid(scale, probs_BTVK.shape[:-1]))

    def _grid(self, scale: WindowScale, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """(B, T, V) centre of the first bin and distance of two, in standardized units."""
        half = scale.half_B1V.double()
        low = scale.center_B1V.double() - self.config.tokenizer.output_range * half
        return low.expand(shape), (self.tokenizer.output_step * half).expand(shape)

    def cells(self, batch: WindowBatch, visible_BTV: Tensor, wanted_BTV: Tensor) -> StackCells:
        """Predict a batch and pick the wanted cells, before stacking and calibration."""
        wanted = Wanted.find(wanted_BTV)
        probs, scale = self.probs(batch.values_BTV, visible_BTV, batch.cell_keys(), wanted)
        probs_CK = probs[wanted_BTV] if wanted is None else probs.squeeze(2)[wanted.own_BN]
        low_BTV, step_BTV = self._grid(scale, wanted_BTV.shape)
        distribution = BinDistribution(probs_CK, low_BTV[wanted_BTV], step_BTV[wanted_BTV])
        neighbours = Neighbours.find(visible_BTV, batch.values_BTV.dtype)
        season, rows = self._asked()
        sides = Sides.find(
            batch.values_BTV,
            neighbours,
            wanted_BTV,
            scale,
            batch.linear_BTV,
            batch.usual_BTV,
            batch.inside_BT,
            season,
            rows,
        )
        window, _, variate = wanted_BTV.nonzero(as_tuple=True)
        excess = Excess.find(batch.values_BTV, neighbours).take(wanted_BTV)
        if excess.is_somewhere():
            distribution = excess.added_to(distribution)
        filled = self.filled(distribution)
        moves = movement(batch.values_BTV, visible_BTV)[wanted_BTV]
        line = torch.where(sides.linear.isnan(), filled, sides.linear)
        shift = correction(filled, line, moves, self.config.tokenizer.min_range / 2)
        distribution = replace(distribution, low=distribution.low + shift)
        gap = neighbours.gap_BTV[wanted_BTV]
        at = Places(
            masked_share(visible_BTV)[window],
            clumping(visible_BTV, batch.inside_BT)[window],
            torch.where(sides.nearest.isinf(), torch.inf, gap.clamp_max(OPEN)),
            variate,
        )
        return StackCells(distribution, filled + shift, sides, at, batch.rows_BT[window, 0])

    def _asked(self) -> tuple[int | None, RowModel | None]:
        """Season and rows, where they have a say or have to be judged."""
        stack = self.stack
        is_seasonal, is_rowwise = (
            (True, True) if stack is None else (stack.is_seasonal, stack.is_rowwise)
        )
        return self.season if is_seasonal else None, self.rows if is_rowwise else None

    def filled(self, distribution: BinDistribution) -> Tensor:
        """(C,) float64, what is filled in for cells of these distributions."""
        return distribution.point(self.config.inference.estimate)

    def stacked(self, cells: StackCells) -> BinDistribution:
        """Move distributions towards what needs no network, as far as the stack says."""
        return cells.distribution if self.stack is None else self.stack.apply(cells)

    def calibrated(self, distribution: BinDistribution, at: Places) -> BinDistribution:
        """Correct the distributions of cells."""
        if self.calibration is None:
            return distribution
        return self.calibration.apply(distribution, at)

    @torch.no_grad()
    def sample_jointly(
        self,
        values_BTV: Tensor,
        observed_BTV: Tensor,
        wanted_BTV: Tensor,
        keys_BTV: Tensor,
        sample: int,
    ) -> Tensor:
        """Run the reverse process: unmask step by step, each draw conditioned on those before.

        Anchors (observed cells) are never changed; their scale holds for the whole process. The
        blur that soft labels teach is taken away before a value is drawn: it would be taken for
        the series' own noise by all that is drawn after it, and grow with every step.

        Returns
        -------
        values_BTV : standardized, drawn where `wanted_BTV`, as given where observed
        """
        num_steps = self.config.inference.reveal_steps
        blur = label_blur(self.config.diffusion)
        visible, values = observed_BTV, values_BTV
        scale: WindowScale | None = None
        for step in range(num_steps):
            stream = _JOINT_STREAM + 3 * (sample * num_steps + step)
            noise = None
            if self.config.draws_tokens:
                noise = keyed_uniform(self.seed, stream + 2, keys_BTV) - 0.5
            tokens, scale = self._tokenize(values, visible, noise, scale)
            distribution = self.distribution(self._network_distribution(tokens), scale)
            revealed, drawn = reverse_step(
                distribution.sharpened(blur, LEAST_SPREAD),
                wanted_BTV & ~visible,
                time=1 - step / num_steps,
                next_time=1 - (step + 1) / num_steps,
                reveal_BTV=keyed_uniform(self.seed, stream, keys_BTV),
                pick_BTV=keyed_uniform(self.seed, stream + 1, keys_BTV),
            )
            values = torch.where(revealed, drawn.to(values.dtype), values)
            visible = visible | revealed
        excess = Excess.find(values_BTV, Neighbours.find(observed_BTV, values_BTV.dtype))
        return torch.where(wanted_BTV, values + excess.line, values)


@dataclass(frozen=True, eq=False)
class Cells:
    """What is said about C missing cells of a panel."""

    rows: IntArray
    """(C,)"""
    variates: IntArray
    """(C,)"""
    filled: FloatArray
    """(C,) the values to fill in."""
    distribution: BinDistribution | None
    """Over the C cells, on the CPU; None if only values were asked for."""

    def join(self, other: Cells) -> Cells:
        """Both sets of cells, one after the other."""
        distribution = None
        if self.distribution is not None and other.distribution is not None:
            distribution = BinDistribution.join([self.distribution, other.distribution])
        return Cells(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.variates, other.variates]),
            np.concatenate([self.filled, other.filled]),
            distribution,
        )


def inference_batch(series: DeviceSeries, window: int, config: ModelConfig) -> int:
    """Windows per batch that fit the memory at hand."""
    cells = window * series.values_NV.shape[1]
    device = series.values_NV.device
    gpu = device.type == "cuda"
    # Per cell: the MLP's inner layer twice, a handful of hidden states, and several distributions.
    per_cell = (2 if gpu else 4) * (2 * config.network.mlp_ratio + 8) * config.network.width
    per_cell += (32 if gpu else 16) * config.tokenizer.num_outputs
    # About what a CPU's caches like; a GPU has enough to do with a million cells.
    budget = min(free_memory(device) // 2, per_cell * 2**20) if gpu else 48 * 2**20
    fitting = min(4096, budget // (per_cell * cells))
    unit = whole_batch(cells)
    return max(unit, fitting - fitting % unit)


def masked_share(visible_BTV: Tensor) -> Tensor:
    """(B,) share of each window's cells that are not visible."""
    return 1 - visible_BTV.double().mean((1, 2))


def clumping(visible_BTV: Tensor, inside_BT: Tensor) -> Tensor:
    """(B,) mean length of each window's gaps, over what it would be if chance had masked it.

    Steps beyond the end of a series are no gap.
    """
    num_variates = visible_BTV.shape[2]
    masked_BTV = ~visible_BTV & inside_BT[..., None]
    begins_BTV = torch.cat([masked_BTV[:, :1], visible_BTV[:, :-1] & masked_BTV[:, 1:]], dim=1)
    steps_B = inside_BT.sum(1).double()
    masked_B = masked_BTV.sum((1, 2)).double()
    share_B = masked_B / (num_variates * steps_B).clamp_min(1)
    # As many cells are masked, so the lengths are to each other as the numbers of gaps.
    by_chance_B = num_variates * share_B * (1 + (steps_B - 1) * (1 - share_B))
    return by_chance_B / begins_BTV.sum((1, 2)).clamp_min(1)


def windows_to_fill(missing: BoolArray, offsets: IntArray, length: int) -> WindowIndex:
    """Half-overlapping windows that hold at least one missing cell."""
    index = covering_windows(offsets, length)
    before = np.concatenate([[0], np.cumsum(missing.any(axis=1))])
    stops = np.minimum(index.starts + length, index.ends)
    return index.take(np.flatnonzero(before[stops] > before[index.starts]))


def fill_cells(
    predictor: Predictor,
    series: DeviceSeries,
    offsets: IntArray,
    length: int,
    *,
    batch_size: int,
    keep_distribution: bool,
    on_windows: OnWindows | None = None,
) -> Cells:
    """Infer every missing cell of the panel, blending the windows that see it.

    Memory beyond the result is that of the batches at work: parts of a cell are blended and let go
    as soon as no later window can add to them.
    """
    num_variates = series.values_NV.shape[1]
    missing = ~series.observed_NV.cpu().numpy()
    index = windows_to_fill(missing, offsets, length)
    device = predictor.device
    weight_T = torch.from_numpy(blend_weights(length)).to(device)
    waiting = Parts.none(predictor.tokenizer.num_outputs, device)
    finished = HostCopies(device)
    done = 0

    def parts_of(batch: WindowBatch) -> tuple[int, Parts]:
        wanted = ~batch.observed_BTV & batch.inside_BT[..., None]
        wanted[batch.count :] = False
        said = predictor.cells(batch, batch.observed_BTV, wanted)
        cells = predictor.stacked(said)
        filled = predictor.filled(cells)
        # Windows that see little of a gap, or one side of it, say so by their spread.
        sure = cells.std().square().clamp_min(1e-12).reciprocal()
        weight = weight_T[wanted.nonzero(as_tuple=True)[1]] * sure
        if keep_distribution:
            cells = predictor.calibrated(cells, said.at)
        at = batch.cells()[wanted]
        return batch.count, Parts(at, weight, filled, cells.probs, cells.low, cells.step)

    batches = series.batches(index, fair_share(len(index), batch_size, device), whole=True)
    for count, parts in side_by_side(parts_of, batches, device):
        waiting = waiting.join(parts)
        done += count
        next_row = int(index.starts[done]) if done < len(index) else len(missing)
        ready, waiting = waiting.split(next_row * num_variates)
        finished.send(*ready.blend(keep_distribution))
        if on_windows is not None:
            on_windows(done, len(index))
    finished.send(*waiting.blend(keep_distribution))  # empty, but it says so in the right types
    return _collect(finished.collect(), num_variates)


def _collect(finished: list[tuple[Tensor, ...]], num_variates: int) -> Cells:
    cells, filled, *distribution = (torch.cat(parts) for parts in zip(*finished, strict=True))
    rows, variates = np.divmod(cells.numpy(), num_variates)
    kept = BinDistribution(*distribution) if distribution else None
    return Cells(rows, variates, filled.numpy(), kept)
