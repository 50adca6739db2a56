"""Threads work on batches, and the answer does not hang on their number."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from conftest import waves
from mdtim import MDTIMImputer
from mdtim.threads import (
    fair_share,
    num_side_by_side,
    side_by_side,
    threads_for_batches,
    threads_for_operators,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3, "a number of threads was not put back"
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items_from_several_threads() -> None:
    meeting = threading.Barrier(3, timeout=60)  # nobody goes on alone

    def work(item: int) -> tuple[int, int, int]:
        meeting.wait()
        return item, threading.get_ident(), torch.get_num_threads()

    with threads_for_batches(CPU):
        assert torch.get_num_threads() == 1
        assert num_side_by_side(CPU) == 3
        found = list(side_by_side(work, range(9), CPU))
    assert [item for item, _, _ in found] == list(range(9))
    assert len({thread for _, thread, _ in found}) == 3
    assert {number for _, _, number in found} == {1}


def test_a_gpu_or_a_single_thread_takes_one_after_the_other_in_the_callers_thread() -> None:
    def work(item: int) -> int:
        return threading.get_ident()

    with threads_for_batches(CPU):
        assert set(side_by_side(work, range(3), torch.device("cuda"))) == {threading.get_ident()}
        with threads_for_operators():
            assert torch.get_num_threads() == 3
            assert set(side_by_side(work, range(3), CPU)) == {threading.get_ident()}
            with threads_for_batches(CPU):
                assert num_side_by_side(CPU) == 3
        assert torch.get_num_threads() == 1
    assert set(side_by_side(work, range(3), CPU)) == {threading.get_ident()}


def test_only_a_few_results_wait_and_a_fault_ends_the_work() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    def work(item: int) -> int:
        if item == 5:
            raise ArithmeticError("five")
        return item

    with threads_for_batches(CPU):
        results = side_by_side(work, items(), CPU)
        assert next(results) == 0
        assert len(taken) == 4
        with pytest.raises(ArithmeticError, match="five"):
            list(results)
    assert len(taken) < 12


def test_there_are_batches_for_every_thread() -> None:
    with threads_for_batches(CPU):
        assert fair_share(100, 8, CPU) == 8
        assert fair_share(7, 8, CPU) == 3
        assert fair_share(1, 8, CPU) == 1
        assert fair_share(0, 8, CPU) == 1
    assert fair_share(7, 8, CPU) == 7


def test_a_fill_is_the_same_to_the_bit_with_any_number_of_threads() -> None:
    values = waves(700, 5)
    values[np.random.default_rng(0).random(values.shape) < 0.2] = np.nan
    values[300:340] = np.nan

    def filled(threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        torch.set_num_threads(threads)
        imputer = MDTIMImputer(device="cpu", window=32, progress=False)
        result = imputer.fit(values).impute(values)
        return result.values, result.interval(0.9)[0], result.samples(1, joint=True)[0]

    for one, other in zip(filled(1), filled(3), strict=True):
        np.testing.assert_array_equal(one, other)
