from __future__ import annotations

import sys

import pytest
import torch

from gpu_cases import needs_cuda
from mdtim.runtime import (
    HostCopies,
    free_memory,
    keyed_uniform,
    precision,
    process_memory_gb,
    resolve_device,
    tensor_float32,
)


def test_keyed_numbers_are_uniform_and_depend_on_seed_stream_and_key() -> None:
    keys = torch.arange(100_000)
    numbers = keyed_uniform(0, 0, keys)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(numbers.var()) == pytest.approx(1 / 12, abs=0.002)
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1])) < 0.01
    for other in (keyed_uniform(1, 0, keys), keyed_uniform(0, 1, keys)):
        assert abs(float(torch.corrcoef(torch.stack([numbers, other]))[0, 1])) < 0.01


def test_keyed_numbers_are_the_same_in_any_order() -> None:
    keys = torch.randperm(1_000)
    assert torch.equal(keyed_uniform(3, 2, keys), keyed_uniform(3, 2, torch.arange(1_000))[keys])


def test_known_numbers_do_not_change_between_versions() -> None:
    numbers = keyed_uniform(42, 7, torch.tensor([0, 1, 10**12]))
    assert [round(float(number), 6) for number in numbers] == KNOWN


KNOWN = [0.729443, 0.347463, 0.294102]


def test_a_cpu_computes_in_float32() -> None:
    with precision(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_a_device_that_is_not_there_is_refused() -> None:
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="unknown device 'toaster'"):
        resolve_device("toaster")
    with pytest.raises(ValueError, match="not supported"):
        resolve_device("meta")
    if not torch.cuda.is_available():
        assert resolve_device("auto").type == "cpu"
        with pytest.raises(ValueError, match="sees no GPU"):
            resolve_device("cuda")


def test_products_of_float32_are_rounded_on_a_gpu_alone_and_no_longer_than_asked() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    with tensor_float32(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "highest"
    with tensor_float32(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_memory_of_the_process_is_told_where_the_system_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0.05 < process_memory_gb() < 100  # PyTorch alone takes more than the first
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert process_memory_gb() == 0.0


def check_copies(device: torch.device) -> None:
    copies = HostCopies(device)
    batches = [torch.randn(1_000 * number, device=device) for number in range(5)]
    for batch in batches:
        result = batch * 2
        copies.send(result, result.sum())
        del result  # its memory may serve the next batch only after it was copied
    arrived = copies.collect()
    for (values, total), batch in zip(arrived, batches, strict=True):
        assert values.device.type == "cpu"
        torch.testing.assert_close(values, 2 * batch.cpu())
        torch.testing.assert_close(total, (2 * batch).sum().cpu())


def test_results_arrive_on_the_host_in_order() -> None:
    check_copies(torch.device("cpu"))


@pytest.mark.gpu
@needs_cuda
def test_results_arrive_from_a_gpu_in_order() -> None:
    check_copies(torch.device("cuda"))


@pytest.mark.gpu
@needs_cuda
def test_memory_that_pytorch_holds_unused_counts_as_free() -> None:
    device = torch.device("cuda")
    before = free_memory(device)
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert free_memory(device) <= before - 2**28
    del held
    assert free_memory(device) >= before - 2**24


def test_another_default_dtype_is_refused_in_a_sentence() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"torch\.set_default_dtype\(torch\.float32\)"):
            resolve_device("cpu")
    finally:
        torch.set_default_dtype(torch.float32)
