"""Denoising diffusion of continuous values: schedule, noising and one step back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Schedule:
    """Variances of K noising steps; step 0 is the least noisy."""

    beta_K: Tensor
    keep_K: Tensor
    """Share of the signal's variance left after each step: the product of 1 - beta."""

    @classmethod
    def quadratic(cls, num_steps: int, first: float, last: float, device: torch.device) -> Schedule:
        """Betas whose roots are equally spaced."""
        root = torch.linspace(first**0.5, last**0.5, num_steps, device=device)
        beta = root**2
        return cls(beta, torch.cumprod(1 - beta, dim=0))

    def __len__(self) -> int:
        return len(self.beta_K)

    def noised(self, values: Tensor, noise: Tensor, step_B: Tensor) -> Tensor:
        """Values (B, ...) after `step_B` steps of noise."""
        keep = self.keep_K[step_B].reshape(-1, *[1] * (values.ndim - 1))
        return keep.sqrt() * values + (1 - keep).sqrt() * noise

    def back(self, noised: Tensor, said: Tensor, step: int, fresh: Tensor) -> Tensor:
        """One step towards the values: remove the noise that was said, add fresh noise.

        Parameters
        ----------
        said : the network's estimate of the noise in `noised`
        fresh : standard normal; not used by the last step
        """
        beta, keep = self.beta_K[step], self.keep_K[step]
        mean = (noised - beta / (1 - keep).sqrt() * said) / (1 - beta).sqrt()
        if step == 0:
            return mean
        spread = ((1 - self.keep_K[step - 1]) / (1 - keep) * beta).sqrt()
        return mean + spread * fresh
