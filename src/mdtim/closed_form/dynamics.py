"""How a table moves on from step to step, and the fill that such movement makes likeliest.

The law of a few successive steps is taken for that of a Gaussian vector autoregression; it follows
from their covariance alone. Given the visible cells of a window, the likeliest hidden ones solve a
linear system in the precision of the whole window, which is sparse along time: conjugate gradients
do it with a few small matrix products. This is what a Kalman smoother would say, at any mask and
for all windows of a batch at once.

B windows, T steps, V variates, P steps of memory, S = (P + 1) * V.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 3
"""Steps that the next one hangs on; fewer in wide tables."""
MAX_SIZE = 1_024
"""Steps times variates up to which that memory reaches."""
LONGER, MAX_LONGER_SIZE = (6, 12, 24), 104
"""Longer memories, for tables that show them, and steps times variates up to which these reach."""
WINDOW = 4
"""Memories that a window must hold to show a longer one."""
PENALTY = 4.0
"""Of a slope, in units of twice the log-likelihood: Akaike's is 2, and is taken in by changing
variances; Hannan and Quinn's grows slowly with the rows, to about this."""
RIDGE = 1e-4
"""Added to every variance, as a share of it."""
ITERATIONS = 16
"""Of the conjugate gradients. Where much is hidden and the table moves slowly, more would still
help a little; the network sees the other guesses too."""


def steps_of_memory(num_variates: int) -> int:
    """P of a table: the covariance of P + 1 steps has to be found out and inverted."""
    return max(1, min(MEMORY, MAX_SIZE // num_variates - 1))


def memories(num_variates: int, window: int) -> list[int]:
    """Those that a table may have, the usual one first."""
    usual = steps_of_memory(num_variates)
    most = min(MAX_LONGER_SIZE // num_variates - 1, window // WINDOW)
    return [usual, *(one for one in LONGER if usual < one <= most)]


def most_telling(
    covariance_SS: Tensor, num_variates: int, num_rows: float, choices: list[int]
) -> int:
    """The memory that tells most of the next step, for as many slopes as it has.

    Parameters
    ----------
    covariance_SS : of successive steps, one more than the longest memory
    num_rows : from which it was read
    """
    scores = []
    for memory in choices:
        size = (memory + 1) * num_variates
        own = whitening(covariance_SS[-size:, -size:]).diagonal()[-num_variates:].double()
        score = -2 * num_rows * float(own.log().sum()) + PENALTY * memory * num_variates**2
        scores.append(score if memory == choices[0] or 10 * size < num_rows else torch.inf)
    return choices[scores.index(min(scores))]


def whitening(covariance_SS: Tensor) -> Tensor:
    """What makes P + 1 successive steps white: the inverse of their Cholesky factor.

    Parameters
    ----------
    covariance_SS : (..., S, S) of successive steps, the oldest first

    Returns
    -------
    whiten_SS : (..., S, S) float32, lower triangular. Its last V rows make white what a step
        brings beyond the steps before it; the others do so for the first steps of a window.
    """
    covariance_SS = covariance_SS.double()
    variance_S = covariance_SS.diagonal(dim1=-2, dim2=-1)
    # A variate that never moves has no precision to speak of.
    added_S = RIDGE * variance_S + 1e-4
    factor_SS = torch.linalg.cholesky_ex(covariance_SS + torch.diag_embed(added_S)).L
    identity = torch.eye(factor_SS.shape[-1], dtype=factor_SS.dtype, device=factor_SS.device)
    whiten_SS: Tensor = torch.linalg.solve_triangular(factor_SS, identity, upper=False)
    return whiten_SS.float()


class Precision:
    """The inverse covariance of a window, as something to multiply by.

    Parameters
    ----------
    whiten_SS : (S, S) of the table, or (B, S, S) of each window's table
    num_steps : T
    num_variates : V
    """

    def __init__(self, whiten_SS: Tensor, num_steps: int, num_variates: int) -> None:
        self.memory = min(whiten_SS.shape[-1] // num_variates, num_steps) - 1
        self.num_steps = num_steps
        size = num_variates * (self.memory + 1)
        # A window shorter than the memory is a beginning and nothing else.
        whiten_SS = whiten_SS.double()[..., :size, :size]
        first = self.memory * num_variates
        self.begin = whiten_SS[..., :first, :first]
        self.steps = torch.split(whiten_SS[..., first:, :], num_variates, dim=-1)

    def _lagged(self, x_BTV: Tensor, lag: int) -> Tensor:
        return x_BTV[:, lag : self.num_steps - self.memory + lag]

    def multiply(self, x_BTV: Tensor) -> Tensor:
        """The precision times (B, T, V) values."""
        # White: the first steps, and what each later one brings beyond those before it.
        white_BF = _rows(x_BTV[:, : self.memory].flatten(1), self.begin.mT)
        news = [self._lagged(x_BTV, lag) @ step.mT for lag, step in enumerate(self.steps)]
        return self._colour(white_BF, torch.stack(news).sum(0), x_BTV)

    def draw(self, like_BTV: Tensor, generator: torch.Generator) -> Tensor:
        """Noise (B, T, V) whose covariance is the precision."""
        noise_BTV = torch.empty_like(like_BTV).normal_(generator=generator)
        return self._colour(
            noise_BTV[:, : self.memory].flatten(1), noise_BTV[:, self.memory :], like_BTV
        )

    def _colour(self, white_BF: Tensor, new_BTV: Tensor, like_BTV: Tensor) -> Tensor:
        """The transposed whitening of white numbers."""
        out_BTV = torch.zeros_like(like_BTV)
        begin_BPV = out_BTV[:, : self.memory]
        begin_BPV += _rows(white_BF, self.begin).view(begin_BPV.shape)
        for lag, step in enumerate(self.steps):
            self._lagged(out_BTV, lag).add_(new_BTV @ step)
        return out_BTV

    def diagonal(self, like_BTV: Tensor) -> Tensor:
        """(1 or B, T, V) its diagonal."""
        batch = len(self.begin) if self.begin.ndim == 3 else 1
        out_BTV = like_BTV.new_zeros((batch, *like_BTV.shape[1:]))
        first_BF = self.begin.square().sum(-2)
        out_BTV[:, : self.memory] = first_BF.view(batch, self.memory, like_BTV.shape[2])
        for lag, step in enumerate(self.steps):
            self._lagged(out_BTV, lag).add_(step.square().sum(-2)[..., None, :])
        return out_BTV


def _rows(x_BF: Tensor, matrix: Tensor) -> Tensor:
    """Every row times the matrix, which all share or each has its own of."""
    return x_BF @ matrix if matrix.ndim == 2 else (x_BF[:, None] @ matrix)[:, 0]


def smooth(
    filled_BTV: Tensor, visible_BTV: Tensor, whiten_SS: Tensor, iterations: int = ITERATIONS
) -> tuple[Tensor, Tensor]:
    """The likeliest hidden cells.

    Parameters
    ----------
    filled_BTV : standardized values, with a first guess where not visible
    whiten_SS : see :func:`whitening`

    Returns
    -------
    values_BTV : the visible ones as they are
    spread_BTV : (1 or B, T, V) std of a cell if all others were visible
    """
    precision = Precision(whiten_SS, *filled_BTV.shape[1:])
    found_BTV = _solve(precision, filled_BTV, visible_BTV, None, iterations)
    spread_BTV = precision.diagonal(filled_BTV.double()).rsqrt()
    return found_BTV, spread_BTV.to(filled_BTV.dtype)


def draw_hidden(
    filled_BTV: Tensor, visible_BTV: Tensor, whiten_SS: Tensor, generator: torch.Generator
) -> Tensor:
    """Hidden cells drawn from their law given the visible ones, otherwise as :func:`smooth`.

    The likeliest cells under a force that is itself drawn, with the precision as its covariance,
    are distributed just so.
    """
    precision = Precision(whiten_SS, *filled_BTV.shape[1:])
    force_BTV = precision.draw(filled_BTV.double(), generator)
    return _solve(precision, filled_BTV, visible_BTV, force_BTV, ITERATIONS)


def _solve(
    precision: Precision,
    filled_BTV: Tensor,
    visible_BTV: Tensor,
    force_BTV: Tensor | None,
    iterations: int,
) -> Tensor:
    """Conjugate gradients from a first guess, each window by itself."""
    # In float64: the order of the variates and the size of the batch must not show.
    x = filled_BTV.double()
    hidden = ~visible_BTV
    diagonal = precision.diagonal(x)
    residual = -precision.multiply(x)
    residual = (residual if force_BTV is None else residual + force_BTV) * hidden
    ahead = residual / diagonal
    direction = ahead
    gain = (residual * ahead).sum((1, 2), keepdim=True)
    for _ in range(iterations):
        turned = precision.multiply(direction) * hidden
        steepness = (direction * turned).sum((1, 2), keepdim=True)
        pace = gain / steepness.clamp_min(1e-30)
        x = x + pace * direction
        residual = residual - pace * turned
        ahead = residual / diagonal
        next_gain = (residual * ahead).sum((1, 2), keepdim=True)
        direction = ahead + next_gain / gain.clamp_min(1e-30) * direction
        gain = next_gain
    return x.to(filled_BTV.dtype)
