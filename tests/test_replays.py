"""Which exercise each step learns from; the graphs themselves need a GPU (see test_training)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mdtim.learning.replays import Replays, _copy

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Inner:
    numbers: Tensor


@dataclass(frozen=True, eq=False)
class Drawn:
    inner: Inner
    step: Tensor
    nothing: None = None


class Run:
    """Steps that learn nothing but which random numbers they were given."""

    def __init__(self, kinds: list[int]) -> None:
        self.kinds = kinds
        self.generator = torch.Generator()
        self.made_for = -1

    def kind(self, step: int) -> Hashable:
        return self.kinds[step % len(self.kinds)]

    def seed(self, step: int) -> None:
        self.made_for = step
        self.generator.manual_seed(step)

    def make(self, kind: Hashable) -> Drawn:
        assert isinstance(kind, int)
        numbers = torch.rand(kind + 1, generator=self.generator)
        return Drawn(Inner(numbers), torch.tensor(self.made_for))

    def learn(self, exercise: Drawn) -> Tensor:
        return torch.cat([exercise.inner.numbers, exercise.step[None]])

    def alone(self, step: int) -> Tensor:
        self.seed(step)
        return self.learn(self.make(self.kind(step)))


class Graph:
    """Like a captured graph, it does its work only when it is replayed."""

    def __init__(self, replays: Replays[Drawn], kind: Hashable, following: Hashable) -> None:
        self.replays, self.kind, self.following = replays, kind, following
        self.result = torch.zeros(len(replays.learn(replays.exercises[kind])))

    def replay(self) -> None:
        made = self.replays.make(self.following)
        self.result.copy_(self.replays.learn(self.replays.exercises[self.kind]))
        _copy(made, self.replays.exercises[self.following])


@pytest.fixture(scope="module", autouse=True)
def no_gpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", lambda *_, **__: SimpleNamespace())
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)

        def capture(self: Replays[Drawn], kind: Hashable, following: Hashable) -> Any:
            assert min(self.seen[kind], self.seen[following]) >= 3, "not warm yet"
            graph = Graph(self, kind, following)
            return graph, graph.result

        patch.setattr(Replays, "_capture", capture)
        yield


@given(
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    first=st.integers(0, 20),
    count=st.integers(1, 40),
)
def test_a_step_learns_from_the_exercise_of_its_seed_and_kind(
    kinds: list[int], first: int, count: int
) -> None:
    run = Run(kinds)
    replays = Replays(
        CPU, run.generator, kind=run.kind, seed=run.seed, make=run.make, learn=run.learn
    )
    for step in range(first, first + count):
        assert torch.equal(replays.run(step), run.alone(step))


def test_a_run_is_replayed_after_its_first_steps() -> None:
    run = Run([0, 1])
    replays = Replays(
        CPU, run.generator, kind=run.kind, seed=run.seed, make=run.make, learn=run.learn
    )
    for step in range(20):
        replays.run(step)
    assert set(replays.graphs) == {(0, 1), (1, 0)}
    assert replays.ready == 20
