"""Training steps as CUDA graphs: the host starts one graph instead of a thousand kernels.

A step has two parts that need nothing of each other: learning from an exercise, large kernels that
fill the GPU, and making the exercise of the next step, hundreds of small ones. A graph holds both
side by side, so that the small ones run in the gaps of the large.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
"""An exercise: a dataclass of tensors, of others like it, and of None."""

_WARM_UP = 3
"""Steps of a kind that run as they are, while libraries and allocators settle."""


class _Streams(threading.local):
    """A thread's two streams on each device, for all its runs: cuBLAS keeps memory for each."""

    def __init__(self) -> None:
        self.known: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}

    def on(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        """For the steps, and for what runs beside them."""
        if device not in self.known:
            steps = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # Ahead of the large kernels, or the small ones would wait for each of them.
            beside = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self.known[device] = steps, beside
        return self.known[device]


_STREAMS = _Streams()


class Replays(Generic[Made]):
    """Steps that run as they are at first; then one of each kind is captured, and replayed.

    What is captured must not look at the host.

    Parameters
    ----------
    device : a GPU
    generator : what exercises are drawn from
    kind : get ready for making the exercise of a step, and return its kind: exercises of a kind
        differ in nothing but random numbers
    seed : seed the generator for the exercise of a step
    make : the exercise of a kind, from the generator and no other random numbers
    learn : the rest of a step, which may draw from PyTorch's default generator
    """

    def __init__(
        self,
        device: torch.device,
        generator: torch.Generator,
        *,
        kind: Callable[[int], Hashable],
        seed: Callable[[int], None],
        make: Callable[[Hashable], Made],
        learn: Callable[[Made], Tensor],
    ) -> None:
        self.stream, self.beside = _STREAMS.on(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.generator = generator
        self.kind, self.seed, self.make, self.learn = kind, seed, make, learn
        self.seen: dict[Hashable, int] = {}
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.exercises: dict[Hashable, Made] = {}
        """Where the graphs read and write the exercise of each kind."""
        self.ready: int | None = None
        """The step whose exercise has been made."""

    def run(self, step: int) -> Tensor:
        """Run one step and return its result, which the next step may overwrite."""
        kind = self.kind(step)
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if self.ready == step:
            exercise = self.exercises[kind]
        else:
            self.seed(step)
            exercise = self.make(kind)
        following = self.kind(step + 1)
        if self.seen[kind] <= _WARM_UP or self.seen.get(following, 0) < _WARM_UP:
            return self.learn(exercise)
        if self.ready != step:
            self._keep(kind, exercise)
        if following not in self.exercises:  # the graph needs a place to put it
            self.seed(step + 1)
            self._keep(following, self.make(following))
        if (kind, following) not in self.graphs:
            self.graphs[kind, following] = self._capture(kind, following)
        graph, result = self.graphs[kind, following]
        self.seed(step + 1)
        graph.replay()
        self.ready = step + 1
        return result

    def _keep(self, kind: Hashable, exercise: Made) -> None:
        """Put an exercise where the graphs read it."""
        if kind in self.exercises:
            _copy(exercise, self.exercises[kind])
        else:
            self.exercises[kind] = _clone(exercise)

    def _capture(self, kind: Hashable, following: Hashable) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.beside.wait_stream(self.stream)
            with torch.cuda.stream(self.beside):
                made = self.make(following)
            result = self.learn(self.exercises[kind])
            self.stream.wait_stream(self.beside)
            _copy(made, self.exercises[following])
        return graph, result


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None:
        return []
    return [x for field in dataclasses.fields(tree) for x in _tensors(getattr(tree, field.name))]


def _clone(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone(memory_format=torch.contiguous_format)
    if tree is None:
        return None
    parts = {field.name: _clone(getattr(tree, field.name)) for field in dataclasses.fields(tree)}
    return dataclasses.replace(tree, **parts)


def _copy(source: Any, target: Any) -> None:
    torch._foreach_copy_(_tensors(target), _tensors(source))
