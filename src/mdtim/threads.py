"""How a CPU's threads are used: each works on a batch of its own, none on a part of an operator.

The operators of a batch are small. Split among threads, each of them waits for the slowest one, a
thousand times a batch: where other programs want the cores too, that is most of the time. Batches
that know nothing of each other wait for nobody, and what they sum up does not hang on the number of
threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 16
"""More threads would wait for Python's lock, and each takes the memory of a batch."""
_threads: ContextVar[int | None] = ContextVar("threads", default=None)
"""How many there are for batches, where operators have one each."""


@contextmanager
def threads_for_batches(device: torch.device) -> Iterator[None]:
    """On a CPU operators run in one thread; :func:`side_by_side` has the others."""
    before, inside = torch.get_num_threads(), _threads.get()
    if device.type != "cpu" or inside is not None or before == 1:
        yield
        return
    token = _threads.set(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


@contextmanager
def threads_for_operators() -> Iterator[None]:
    """Inside the above: all threads for every operator again, as training takes them."""
    before = torch.get_num_threads()
    torch.set_num_threads(_threads.get() or before)
    token = _threads.set(None)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


def num_side_by_side(device: torch.device) -> int:
    """How many batches are worked on at a time."""
    return min(_threads.get() or 1, MOST) if device.type == "cpu" else 1


def fair_share(num_windows: int, most: int, device: torch.device) -> int:
    """Windows of a batch of which there are enough for all threads."""
    return max(1, min(most, -(-num_windows // num_side_by_side(device))))


def side_by_side(
    function: Callable[[Item], Result], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """The results of a function, in the order of the items.

    Only about as many results as there are threads wait for being taken.
    """
    number = num_side_by_side(device)
    if number == 1:
        yield from map(function, items)
        return
    coming: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(number, "mdtim", torch.set_num_threads, (1,)) as pool:
        try:
            for item in items:
                coming.append(pool.submit(function, item))
                if len(coming) > number:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
