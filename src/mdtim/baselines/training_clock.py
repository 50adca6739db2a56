"""How much of a training is over, and the learning rate that belongs to it."""

from __future__ import annotations

import time
from collections.abc import Sequence


class TrainingClock:
    """Counts the updates of a training and the seconds since it began.

    Parameters
    ----------
    seconds, num_updates : whichever ends first ends the training
    drops : shares of the training, each followed by a tenth of the rate
    """

    def __init__(self, seconds: float, num_updates: int, drops: Sequence[float] = ()) -> None:
        self.began = time.monotonic()
        self.seconds, self.num_updates, self.drops = seconds, num_updates, drops
        self.updates = 0

    @property
    def spent(self) -> float:
        """Share of the updates, or of the time if that is further."""
        by_time = (time.monotonic() - self.began) / max(self.seconds, 1e-9)
        return max(self.updates / self.num_updates, by_time)

    @property
    def is_out_of_time(self) -> bool:
        """Whether the seconds are over."""
        return time.monotonic() - self.began > self.seconds

    @property
    def may_end_early(self) -> bool:
        """Whether all drops are behind: before, a standstill may be the rate's."""
        return self.spent >= max(self.drops, default=0.0)

    def rate(self, first: float) -> float:
        """The learning rate of the next update, given that of the first."""
        return dropped_rate(first, self.drops, self.spent)


def dropped_rate(rate: float, drops: Sequence[float], spent: float) -> float:
    """The learning rate when a share of the training is over: a tenth behind each drop.

    Examples
    --------
    >>> [round(dropped_rate(1.0, (0.75, 0.9), spent), 2) for spent in (0.0, 0.75, 0.95)]
    [1.0, 0.1, 0.01]
    """
    return rate * 0.1 ** sum(spent >= drop for drop in drops)
