"""CUDA sources of the package: they compile for the GPUs they are meant for, without one."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from gpu_cases import needs_cuda
from mdtim.gpu import cuda_attention, cuda_compiler, cuda_mlp

ATTENTION = {"TILES": 3, "PACKED": 0, "GROUPS": 1, "HEADS": 8, "NUM_HEADS": 16, "PROGRAMS": 3}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NVRTC from its own wheel, whatever PyTorch was built with."""
    if importlib.util.find_spec("nvidia") is None:
        pytest.skip("NVRTC is not installed on this machine")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    cuda_compiler._compiler.cache_clear()
    yield
    cuda_compiler._compiler.cache_clear()


def compile_for(architecture: str, file: str, **constants: int) -> bytes:
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    return cuda_compiler._compile(file, options)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "changes",
    [
        {"HALF": 0, "ROPE": 1},
        {"HALF": 1, "ROPE": 0},
        {"HALF": 0, "ROPE": 1, "TILES": 1, "PACKED": 1, "GROUPS": 2},
        {"HALF": 0, "ROPE": 1, "TILES": 4, "HEADS": 1, "NUM_HEADS": 3},
    ],
)
def test_attention_compiles(changes: dict[str, int]) -> None:
    binary = compile_for("sm_90", "gpu/cuda_attention.cu", **(ATTENTION | changes))
    assert all(name in binary for name in (b"attend", b"attend_backward"))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("width", "inner", "half"), [(256, 1024, 0), (128, 384, 1)])
def test_the_mlp_compiles(width: int, inner: int, half: int) -> None:
    binary = compile_for("sm_90a", "gpu/cuda_mlp.cu", HALF=half, D=width, F=inner)
    assert all(name in binary for name in (b"up_and_gelu", b"back_to_gelu"))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("views", [0, 2])
def test_layers_of_compared_systems_compile(views: int) -> None:
    sizes = {"C": 64, "HEADS": 8, "WIDTH": 8, "HIDDEN": 64, "WARPS": 12, "SHARED": 1}
    tiling = {"LENGTH": 21, "TILES": 3, "PACKED": 2}
    encoder, gate = "baselines/cuda_encoder.cu", "baselines/cuda_gate.cu"
    assert b"encode" in compile_for("sm_90", encoder, **sizes, **tiling, VIEWS=views)
    assert b"finish" in compile_for("sm_90", gate, C=128, WARPS=8)


@pytest.mark.usefixtures("compiler")
def test_a_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)cuda_mlp.cu with .*does not compile.*error"):
        compile_for("sm_90a", "gpu/cuda_mlp.cu", HALF=0, D=256, F=1024, ROWS=1)


@pytest.mark.parametrize("version", [None, "11.8"])
def test_nothing_is_compiled_where_pytorch_has_no_cuda_or_an_old_one(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    cuda_compiler.has_compiler.cache_clear()
    assert not cuda_compiler.has_compiler()
    cuda_compiler.has_compiler.cache_clear()


def test_a_missing_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.0")  # whose NVRTC nobody has
    cuda_compiler.has_compiler.cache_clear()
    cuda_compiler._compiler.cache_clear()
    assert not cuda_compiler.has_compiler()
    cuda_compiler.has_compiler.cache_clear()


def test_only_short_sequences_of_halves_on_a_hopper_gpu_are_for_the_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fits(steps: int, channels: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return cuda_attention.fits(torch.zeros(1, steps, 2, channels, dtype=dtype), 4, True)

    assert not fits(48, 192), "on a CPU"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda_attention, "has_compiler", lambda: True)
    assert fits(48, 192)
    assert fits(64, 192, torch.float16)
    assert not fits(65, 192)
    assert not fits(48, 384), "heads of 32 channels"
    assert not fits(48, 192, torch.float32)
    shifted = torch.zeros(1 + 48 * 2 * 192, dtype=torch.bfloat16)[1:].view(1, 48, 2, 192)
    assert not cuda_attention.fits(shifted, 4, True), "copied in pieces of 16 bytes"


@pytest.mark.gpu
@needs_cuda
def test_a_kernel_runs_on_the_stream_that_is_current() -> None:
    if not cuda_compiler.has_compiler():
        pytest.skip("PyTorch came without NVRTC")
    x = torch.randn(1_000, 256, device="cuda").bfloat16()
    weight, bias = torch.randn(1024, 256, device="cuda").bfloat16() / 16, x.new_zeros(1024)
    if not cuda_mlp.fits(x, weight):
        pytest.skip("needs a Hopper GPU")
    expected, _ = cuda_mlp.up_and_gelu(x, weight, bias)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        later = x.clone()
        result, _ = cuda_mlp.up_and_gelu(later, weight, bias)
    stream.synchronize()
    assert torch.equal(result, expected)
