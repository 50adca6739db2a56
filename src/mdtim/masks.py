"""Which cells training hides: drawn on the device, without a loop over steps.

B windows, T steps, V variates. True means hidden. The rate is one number per window, the diffusion
time; where the hidden cells lie is the pattern's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.config import DiffusionConfig


@dataclass(frozen=True, eq=False)
class MaskMix:
    """The patterns of training: single cells and runs.

    Half of the windows hide single cells, half geometric runs. Where the table has gaps of its own,
    40 % hide single cells, 25 % geometric runs and 35 % runs as long as the table's gaps.
    """

    mixed: bool
    """False: single cells only, as in the paper."""
    run_range: tuple[float, float]
    gap_lengths: Tensor | None = None
    """(G,) float run lengths of the table's own gaps, if it has any."""
    joint_share: float = 0.0
    """How often a gap of the table takes all variates at once."""

    @classmethod
    def from_config(
        cls, config: DiffusionConfig, gap_lengths: Tensor | None = None, joint_share: float = 0.0
    ) -> MaskMix:
        """Patterns of a config, with the table's own gaps where known."""
        return cls(config.mixed_masks, config.run_range, gap_lengths, joint_share)

    def draw(
        self, rate_B: Tensor, shape: tuple[int, int, int], generator: torch.Generator
    ) -> Tensor:
        """Draw hidden cells, (B, T, V) bool; each window hides about its own rate."""
        hidden = draw_points(rate_B, shape, generator)
        if not self.mixed:
            return hidden
        num_windows = shape[0]
        device = rate_B.device
        low, high = self.run_range
        mean_run_B = low + (high - low) * torch.rand(
            num_windows, generator=generator, device=device
        )
        runs = draw_runs(rate_B, mean_run_B, shape, generator)
        kind_B = torch.rand(num_windows, generator=generator, device=device)[:, None, None]
        if self.gap_lengths is None or len(self.gap_lengths) == 0:
            return torch.where(kind_B < 0.5, hidden, runs)
        gaps = _renewal(rate_B, self.gap_lengths, self.joint_share, shape, generator)
        return torch.where(kind_B < 0.4, hidden, torch.where(kind_B < 0.65, runs, gaps))


def draw_points(rate_B: Tensor, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Hide each cell by itself, at the rate of its window."""
    chance = torch.rand(shape, generator=generator, device=rate_B.device)
    return chance < rate_B[:, None, None]


def draw_runs(
    rate_B: Tensor, mean_run_B: Tensor, shape: tuple[int, int, int], generator: torch.Generator
) -> Tensor:
    """Two-state chain per window and variate with stationary share `rate`, in closed form.

    One uniform u a step drives both states: hide if u < p (when shown), show if u > 1 - q (when
    hidden). Then every step is a *reset* to hidden or to shown, a *flip*, or nothing, and the state
    is the last reset's, flipped as often as there were flips since.
    """
    device = rate_B.device
    rate = rate_B.clamp(1e-3, 0.98)[:, None, None]
    # Long enough runs that the shown ones need not be shorter than a step.
    mean_run = torch.maximum(mean_run_B[:, None, None], rate / (1 - rate))
    leave_hidden = 1 / mean_run
    leave_shown = leave_hidden * rate / (1 - rate)

    chance = torch.rand(shape, generator=generator, device=device)
    hides, shows = chance < leave_shown, chance > 1 - leave_hidden
    start = torch.rand((shape[0], 1, shape[2]), generator=generator, device=device) < rate
    hides[:, :1], shows[:, :1] = start, ~start  # the first step is a reset to a stationary state

    step_T1 = torch.arange(shape[1], device=device)[:, None]
    last_reset = torch.where(hides ^ shows, step_T1, 0).cummax(dim=1).values
    num_flips = (hides & shows).cumsum(dim=1)
    flips_since = num_flips - num_flips.gather(1, last_reset)
    return hides.gather(1, last_reset) ^ (flips_since % 2 == 1)


def _renewal(
    rate_B: Tensor,
    gap_lengths: Tensor,
    joint_share: float,
    shape: tuple[int, int, int],
    generator: torch.Generator,
) -> Tensor:
    """Alternate hidden runs of the table's own lengths with shown ones that make up the rate."""
    device = rate_B.device
    num_windows, num_steps, num_variates = shape
    rate = rate_B.clamp(1e-3, 0.98)[:, None, None]
    pick = torch.randint(
        len(gap_lengths), (num_windows, num_variates, num_steps), generator=generator, device=device
    )
    # A gap longer than the window hides all of it anyway; shorter ones keep the rate reachable.
    gaps = gap_lengths[pick].clamp_max(num_steps)
    mean_shown = gaps.mean() * (1 - rate) / rate
    chance = torch.rand(pick.shape, generator=generator, device=device).clamp_min(1e-6)
    shown = (1 + (-chance.log() * (mean_shown - 1).clamp_min(0)).round()).clamp_max(4 * num_steps)
    ends = torch.stack([shown, shown + gaps], dim=-1)
    ends[..., 1:, :] += (shown + gaps).cumsum(-1)[..., :-1, None]
    # Begin in the middle of things: somewhere in the first shown run and gap.
    offset = torch.rand((num_windows, num_variates, 1), generator=generator, device=device)
    step = torch.arange(num_steps, device=device) + (offset * ends[..., 0, 1:]).floor()
    run = torch.searchsorted(ends.flatten(-2), step.contiguous(), right=True)
    hidden = (run % 2 == 1).transpose(1, 2)
    joint = torch.rand((num_windows, 1, 1), generator=generator, device=device) < joint_share
    return torch.where(joint, hidden[:, :, :1], hidden)
