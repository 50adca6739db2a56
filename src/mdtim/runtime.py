"""Where and how it runs: device, precision, and random numbers that depend on nothing but a key."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def resolve_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into a device that is really there."""
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"PyTorch's default dtype is {torch.get_default_dtype()}, and the network computes in "
            "float32; call torch.set_default_dtype(torch.float32) first"
        )
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but PyTorch sees no GPU; use cpu or auto")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    return device


def precision(device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 on a GPU that has it; float32 on a CPU.

    Some virtual CPUs announce bfloat16 units and die with an illegal instruction when they are
    used, so a CPU never computes in bfloat16.
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def tensor_float32(device: torch.device) -> Iterator[None]:
    """Products of float32 matrices on the tensor cores of a GPU, which read 10 of 23 bits."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class HostCopies:
    """Results on their way to the host, one batch behind the device.

    On a GPU a batch is copied through pinned memory on a stream of its own, while the device
    computes the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._coming: tuple[Tensor, ...] | None = None
        self._arrived: list[tuple[Tensor, ...]] = []

    def send(self, *tensors: Tensor) -> None:
        """Start copying the results of a batch."""
        if self._stream is None:
            self._arrived.append(tensors)
            return
        self._receive()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            # PyTorch takes pinned memory for copies that do not block.
            self._coming = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def _receive(self) -> None:
        if self._stream is not None and self._coming is not None:
            self._stream.synchronize()
            # Into ordinary memory, so that the next batch takes the same pinned one.
            self._arrived.append(tuple(tensor.clone() for tensor in self._coming))
            self._coming = None

    def collect(self) -> list[tuple[Tensor, ...]]:
        """All that was sent, in order, on the host."""
        self._receive()
        return self._arrived


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on a GPU: free ones, and those PyTorch holds unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def process_memory_gb() -> float:
    """The most memory that this process has had at once; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kilobytes elsewhere


_DEFAULT_GENERATORS = threading.RLock()


@contextlib.contextmanager
def own_random_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """PyTorch's default generators for one's own use, left as they were.

    Initial weights and dropout know no others, and they belong to the whole process: of threads
    that want them one goes on at a time, lest each disturb the other's numbers.
    """
    with _DEFAULT_GENERATORS, torch.random.fork_rng(devices=list(devices)):
        yield


def keyed_uniform(seed: int, stream: int, keys: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), a pure function of (seed, stream, key).

    The same cell gets the same number on any device, in any batch, in any order.

    Parameters
    ----------
    keys : int64 tensor of any shape

    Returns
    -------
    float32 tensor of the same shape
    """
    # SplitMix64's finalizer; int64 arithmetic wraps around, shifts are made logical by masking.
    state = keys * _GOLDEN + (_mix_int(seed) ^ _mix_int(stream + 0x5851F42D))
    state = (state ^ _shift(state, 30)) * _MIX_1
    state = (state ^ _shift(state, 27)) * _MIX_2
    state = state ^ _shift(state, 31)
    uniform: Tensor = _shift(state, 40).to(torch.float32) * 2.0**-24
    return uniform


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(value: Tensor, bits: int) -> Tensor:
    shifted: Tensor = (value >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mix_int(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return _signed(value ^ (value >> 31))
