"""Training in several processes: every rank takes its share of the same batch.

`torchrun` starts the ranks and says so in the environment. The batch of a step is a function of
(seed, step); each rank draws all of it and takes its own windows, and the gradients are added up.
So the number of ranks changes nothing but the order of additions, and what dropout drops.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

TIMEOUT = timedelta(minutes=10)
"""A rank that is silent for so long is lost. Validation and compilation take less."""

_told_to_end = False


class RankLost(ConnectionError):
    """Another process of the same run is gone, so this one cannot go on."""


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them."""

    index: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """The ranks this process was joined with; itself alone if with none."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and speaks for all."""
        return self.index == 0

    def share(self, size: int) -> slice:
        """Which of `size` windows are this rank's."""
        if size < self.count:
            raise ValueError(
                f"a batch of {size} windows cannot be shared by {self.count} processes; start "
                "fewer of them, or make the batch larger"
            )
        return slice(size * self.index // self.count, size * (self.index + 1) // self.count)

    def add_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their sums over all ranks."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _losses():
            dist.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, torch.split(flat, sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def agree(self, value: float, device: torch.device) -> float:
        """The first rank's value: clocks and rounding differ, decisions must not."""
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        with _losses():
            dist.broadcast(shared, src=0)
        return float(shared)

    def check(self) -> None:
        """Raise `RankLost` if the launcher has told this process to end."""
        if _told_to_end:
            raise RankLost("the launcher told this process to end")


@contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what PyTorch raises for a closed connection or a timeout
        raise RankLost("another process of the training does not answer") from error


@contextmanager
def joined_ranks(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the other processes that `torchrun` started, if it did.

    Parameters
    ----------
    device : as for the imputer; "auto" and "cuda" become this rank's own GPU

    Yields
    ------
    ranks, device
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(), device
        return
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    before = signal.signal(signal.SIGTERM, _remember)
    try:
        yield Ranks.current(), device
    finally:
        signal.signal(signal.SIGTERM, before)
        dist.destroy_process_group()


def _remember(*_: Any) -> None:
    # Not raised here, in the middle of whatever runs: a step is finished or not begun.
    global _told_to_end
    _told_to_end = True
