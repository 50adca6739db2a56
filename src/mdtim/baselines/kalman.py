"""The best there is where the process is known: a linear-Gaussian one, smoothed exactly.

A hidden state of D numbers moves as x' = A x + w and is seen as y = C x + v, all noise Gaussian
and v independent from variate to variate. Given any visible cells of a window, every other cell
is Gaussian; a Kalman filter forward and a smoother backward give its mean and variance. No imputer
that sees the same cells has a lower expected error.

B windows, T steps, V variates, D states. Only NumPy is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mdtim.panel import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class StateSpace:
    """A stationary linear-Gaussian process."""

    transition: FloatArray
    """(D, D) A."""
    state_noise: FloatArray
    """(D, D) covariance of w."""
    emission: FloatArray
    """(V, D) C."""
    noise: FloatArray
    """(V,) variances of v."""
    prior: FloatArray
    """(D, D) stationary covariance: P = A P A' + Q."""

    @classmethod
    def rotations(
        cls,
        periods: tuple[float, ...],
        dampings: tuple[float, ...],
        num_variates: int,
        noise: float,
        generator: np.random.Generator,
    ) -> StateSpace:
        """Damped rotations that every variate sees in its own mix, each of unit variance.

        Parameters
        ----------
        periods, dampings : of each rotation: steps of a turn, and what is left after one step
        noise : share of a variate's variance that is independent from step to step
        """
        num_states = 2 * len(periods)
        transition = np.zeros((num_states, num_states))
        for place, (period, damping) in enumerate(zip(periods, dampings, strict=True)):
            angle = 2 * np.pi / period
            turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            part = slice(2 * place, 2 * place + 2)
            transition[part, part] = damping * np.array(turn)
        # A A' is diagonal, so this noise makes the identity the stationary covariance.
        state_noise = np.eye(num_states) - transition @ transition.T
        emission = generator.normal(size=(num_variates, num_states))
        emission *= np.sqrt((1 - noise) / (emission**2).sum(axis=1, keepdims=True))
        return cls(
            transition, state_noise, emission, np.full(num_variates, noise), np.eye(num_states)
        )

    def sample(self, num_steps: int, generator: np.random.Generator) -> FloatArray:
        """Draw one series, (num_steps, V), from the stationary law."""
        num_variates, num_states = self.emission.shape
        kicks = generator.normal(size=(num_steps, num_states)) @ _root(self.state_noise).T
        states = np.empty((num_steps, num_states))
        state = _root(self.prior) @ generator.normal(size=num_states)
        for step in range(num_steps):
            states[step] = state
            state = self.transition @ state + kicks[step]
        noise = generator.normal(size=(num_steps, num_variates)) * np.sqrt(self.noise)
        return states @ self.emission.T + noise

    def smooth(self, values_BTV: FloatArray, visible_BTV: BoolArray) -> tuple[FloatArray, ...]:
        """Condition every window on its own visible cells; before it lies the stationary law.

        Parameters
        ----------
        values_BTV : anything where not visible

        Returns
        -------
        mean_BTV, variance_BTV : of the cell itself, its own noise included; meaningful where
            not visible
        """
        num_steps = values_BTV.shape[1]
        means, covariances, predicted = self._filter(values_BTV, visible_BTV)
        mean, covariance = means[-1], covariances[-1]
        cells = [self._emit(mean, covariance)]
        for step in range(num_steps - 2, -1, -1):
            # What the next state says about this one: J = P A' (A P A' + Q)⁻¹.
            forward = self.transition @ covariances[step]
            solved: FloatArray = np.linalg.solve(predicted[step + 1], forward)  # type: ignore[assignment]
            gain = solved.swapaxes(-1, -2)
            mean = means[step] + _times(gain, mean - means[step] @ self.transition.T)
            change = covariance - predicted[step + 1]
            covariance = covariances[step] + gain @ change @ gain.swapaxes(-1, -2)
            cells.append(self._emit(mean, covariance))
        mean_TBV, variance_TBV = (np.stack(part[::-1]) for part in zip(*cells, strict=True))
        return mean_TBV.swapaxes(0, 1), variance_TBV.swapaxes(0, 1)

    def _filter(
        self, values_BTV: FloatArray, visible_BTV: BoolArray
    ) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
        """Step by step: filtered means and covariances, and covariances before the update."""
        num_windows, num_steps, num_variates = values_BTV.shape
        mean = np.zeros((num_windows, len(self.prior)))
        covariance = np.broadcast_to(self.prior, (num_windows, *self.prior.shape))
        means, covariances, predicted = [], [], []
        for step in range(num_steps):
            if step:
                mean = mean @ self.transition.T
                covariance = self.transition @ covariance @ self.transition.T + self.state_noise
            predicted.append(covariance)
            # The noise is independent, so the variates can be taken in one by one.
            for variate in range(num_variates):
                seen = visible_BTV[:, step, variate]
                row = self.emission[variate]
                cross = covariance @ row
                gain = cross / (cross @ row + self.noise[variate])[:, None]
                gain = np.where(seen[:, None], gain, 0.0)
                surprise = np.where(seen, values_BTV[:, step, variate] - mean @ row, 0.0)
                mean = mean + gain * surprise[:, None]
                covariance = covariance - gain[:, :, None] * cross[:, None, :]
            means.append(mean)
            covariances.append(covariance)
        return means, covariances, predicted

    def _emit(self, mean: FloatArray, covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
        spread = np.einsum("vd,bde,ve->bv", self.emission, covariance, self.emission)
        return mean @ self.emission.T, spread + self.noise


def _root(covariance: FloatArray) -> FloatArray:
    root: FloatArray = np.linalg.cholesky(covariance)  # type: ignore[assignment]
    return root


def _times(matrices: FloatArray, vectors: FloatArray) -> FloatArray:
    return (matrices @ vectors[..., None])[..., 0]
