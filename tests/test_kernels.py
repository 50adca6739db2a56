"""Attention along one axis: every implementation against its definition."""

from __future__ import annotations

import importlib.util
import json
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_cases import needs_cuda, poisoned, relative_error, run_python
from mdtim import kernels
from mdtim.gpu import cuda_attention, triton_attention
from mdtim.kernels import (
    axis_attention,
    pair_channels,
    reference_attention,
    sdpa_attention,
)

AXES: list[Any] = ["time", "variate"]


def attention_by_loops(qkv: Tensor, num_heads: int, axis: str, rope: bool) -> Tensor:
    """One head of one sequence at a time, with rotations as complex numbers."""
    B, T, V, E = qkv.shape
    width = E // (3 * num_heads)
    x = qkv.reshape(B, T, V, 3, num_heads, width)
    x = x.permute(0, 2, 4, 3, 1, 5) if axis == "time" else x.permute(0, 1, 4, 3, 2, 5)
    out = torch.empty_like(x[:, :, :, 0])
    frequency = torch.tensor([10_000.0 ** (-2 * i / width) for i in range(width // 2)])
    for b in range(x.shape[0]):
        for s in range(x.shape[1]):
            for h in range(num_heads):
                q, k, v = x[b, s, h]
                if rope:
                    angle = torch.arange(len(q))[:, None] * frequency.double()
                    turn = torch.polar(torch.ones_like(angle), angle)
                    q, k = (
                        torch.complex(y[:, : width // 2], y[:, width // 2 :]) * turn for y in (q, k)
                    )
                    score = (q @ k.mH).real
                else:
                    score = q @ k.T
                p = (score / width**0.5).exp()
                out[b, s, h] = (p / p.sum(1, keepdim=True)) @ v
    if axis == "time":
        return out.permute(0, 3, 1, 2, 4).reshape(B, T, V, E // 3)
    return out.permute(0, 1, 3, 2, 4).reshape(B, T, V, E // 3)


def errors(
    qkv: Tensor, num_heads: int, axis: Any, rope: bool, **kwargs: Any
) -> tuple[float, float]:
    """Relative errors of the output and of the gradient, against the float64 definition."""
    grad = torch.randn(*qkv.shape[:3], qkv.shape[3] // 3, device=qkv.device).to(qkv.dtype)
    qkv = qkv.detach().requires_grad_()
    out = axis_attention(qkv, num_heads, axis, rope=rope, **kwargs)
    (dqkv,) = torch.autograd.grad(out, qkv, grad)
    exact = qkv.detach().double().requires_grad_()
    truth = reference_attention(exact, num_heads, axis, rope=rope)
    (dexact,) = torch.autograd.grad(truth, exact, grad.double())
    assert out.dtype == dqkv.dtype == qkv.dtype
    return relative_error(out, truth), relative_error(dqkv, dexact)


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("attention", [reference_attention, sdpa_attention])
def test_attention_is_that_of_the_textbook(attention: Any, axis: Any, rope: bool) -> None:
    qkv = torch.randn(2, 5, 3, 3 * 2 * 6, dtype=torch.float64)
    expected = attention_by_loops(qkv, 2, axis, rope)
    torch.testing.assert_close(attention(qkv, 2, axis, rope=rope), expected)
    torch.testing.assert_close(axis_attention(qkv, 2, axis, rope=rope), expected)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("attention", [reference_attention, sdpa_attention])
def test_paired_channels_give_the_same_attention_and_gradients(attention: Any, axis: Any) -> None:
    x = torch.randn(2, 5, 3, 12, dtype=torch.float64)
    weight = torch.randn(3 * 12, 12, dtype=torch.float64, requires_grad=True)

    def run(paired: bool) -> tuple[Tensor, Tensor]:
        rows = pair_channels(weight, 2) if paired else weight
        out = attention(x @ rows.T, 2, axis, rope=True, paired=paired)
        return out, torch.autograd.grad(out.square().sum(), weight)[0]

    for plain, paired in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(paired, plain)
    nothing = attention(torch.zeros(0, 5, 3, 36), 2, axis, rope=True, paired=True)
    assert nothing.shape == (0, 5, 3, 12)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("attention", [reference_attention, sdpa_attention])
def test_gradients_are_those_of_finite_differences(attention: Any, axis: Any) -> None:
    qkv = torch.randn(1, 3, 2, 3 * 2 * 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attention(x, 2, axis, rope=True), (qkv,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 9, 48])
def test_a_cpu_is_as_exact_as_its_precision(length: int, dtype: torch.dtype) -> None:
    qkv = torch.randn(2, length, 3, 3 * 2 * 16).to(dtype)
    assert max(errors(qkv, 2, "time", True)) <= (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("attention", [reference_attention, sdpa_attention])
def test_rope_makes_scores_depend_on_the_distance_alone(attention: Any) -> None:
    length = width = 16
    # Equal queries, equal keys, and values that spell out the probabilities.
    qkv = torch.empty(1, length, 1, 3 * width, dtype=torch.float64)
    qkv[..., : 2 * width] = torch.randn(2 * width, dtype=torch.float64)
    qkv[0, :, 0, 2 * width :] = torch.eye(length, dtype=torch.float64)
    score = attention(qkv, 1, "time", rope=True)[0, :, 0].log()
    score = score - score.diagonal()[:, None]
    torch.testing.assert_close(score[1:, 1:], score[:-1, :-1])
    assert score.std() > 0.01


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("most", [1, 4, 100])
def test_more_sequences_than_a_launch_takes_go_in_parts(
    monkeypatch: pytest.MonkeyPatch, axis: Any, most: int
) -> None:
    monkeypatch.setattr(kernels, "_MAX_SEQUENCES", most)
    monkeypatch.setattr(Tensor, "is_cuda", True)  # the limit is a GPU's
    torch.manual_seed(0)
    qkv = torch.randn(2, 5, 3, 96, dtype=torch.float64)
    assert max(errors(qkv, 2, axis, True, implementation="sdpa")) < 1e-12
    assert sdpa_attention(qkv[:0], 2, axis, rope=True).shape == (0, 5, 3, 32)


@pytest.mark.parametrize("implementation", ["auto", "sdpa", "reference"])
def test_variates_may_come_in_any_order(implementation: Any) -> None:
    qkv, order = torch.randn(2, 4, 11, 3 * 2 * 8), torch.randperm(11)
    out = axis_attention(qkv, 2, "variate", rope=False, implementation=implementation)
    permuted = axis_attention(
        qkv[:, :, order], 2, "variate", rope=False, implementation=implementation
    )
    torch.testing.assert_close(permuted, out[:, :, order])


@pytest.mark.parametrize("length", [1, 9, 48, 200])
def test_a_cpu_never_takes_the_triton_operator(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_triton_attention", None)
    qkv = torch.randn(1, length, 2, 3 * 16)
    out = axis_attention(qkv, 1, "time", rope=True)
    torch.testing.assert_close(out, reference_attention(qkv, 1, "time", rope=True))


@pytest.mark.parametrize(
    ("length", "width", "dtype", "expected"),
    [
        (48, 8, torch.bfloat16, "triton"),
        (kernels.MAX_LENGTH, 16, torch.bfloat16, "triton"),
        (kernels.MAX_LENGTH, 16, torch.float32, "triton"),
        (kernels.MAX_LENGTH + 1, 16, torch.bfloat16, "sdpa"),
        (65, 64, torch.bfloat16, "triton"),
        (65, 64, torch.float32, "sdpa"),
        (48, 24, torch.bfloat16, "sdpa"),
        (48, 16, torch.float64, "sdpa"),
    ],
)
def test_a_gpu_takes_triton_for_short_sequences_and_sdpa_for_the_rest(
    length: int, width: int, dtype: torch.dtype, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(kernels, "runs_triton", lambda tensor: True)
    monkeypatch.setattr(kernels, "_triton_attention", lambda *_: "triton")
    monkeypatch.setattr(kernels, "sdpa_attention", lambda *_, **__: "sdpa")
    with FakeTensorMode():  # shapes of a GPU's tensors, without the GPU
        qkv = torch.empty(2, 3, length, 3 * 2 * width, dtype=dtype, device="cuda")
    assert axis_attention(qkv, 2, "variate", rope=False) == expected
    if width == 8:  # half a head is too narrow to be rotated
        assert axis_attention(qkv, 2, "variate", rope=True) == "sdpa"


def test_a_hopper_gpu_takes_the_kernels_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cuda_attention, "fits", lambda *_: True)
    monkeypatch.setattr(cuda_attention, "launch", lambda *arguments: launched.append(arguments))
    qkv, grad = torch.zeros(2, 48, 3, 3 * 2 * 16), torch.zeros(2, 48, 3, 2 * 16)
    out = triton_attention.attend(qkv, None, 2, True)
    dqkv = triton_attention.attend_backward(grad, qkv, None, None, 2, False)
    forward, backward = launched
    assert (forward[0], forward[4:]) == ("attend", (2, True))
    assert (backward[0], backward[4:]) == ("attend_backward", (2, False))
    assert [id(x) for x in forward[3]] == [id(out)]
    assert [id(x) for x in backward[3]] == [id(grad), id(dqkv), id(None)]
    triton_attention.attend(qkv[:0], None, 2, True)
    assert len(launched) == 2, "nothing to do"


def test_a_wrong_request_says_what_is_wrong() -> None:
    qkv = torch.randn(1, 4, 2, 3 * 16)
    wrong: Any = "channel"
    with pytest.raises(ValueError, match="axis must be"):
        axis_attention(qkv, 1, wrong, rope=False)
    with pytest.raises(ValueError, match="H = 5"):
        axis_attention(qkv, 5, "time", rope=False)
    with pytest.raises(ValueError, match="unknown implementation"):
        axis_attention(qkv, 1, "time", rope=False, implementation=wrong)
    with pytest.raises(ValueError, match="takes CUDA tensors"):
        axis_attention(qkv, 1, "time", rope=False, implementation="triton")


def test_an_empty_batch_gives_an_empty_result() -> None:
    for axis in AXES:
        out = axis_attention(torch.empty(0, 4, 2, 48), 1, axis, rope=True)
        assert out.shape == (0, 4, 2, 16)


def test_training_works_after_inference_mode_has_run_first() -> None:
    kernels._cached_rope_table.cache_clear()
    qkv = torch.randn(1, 40, 2, 3 * 16, requires_grad=True)
    with torch.inference_mode():
        axis_attention(qkv, 1, "time", rope=True)
    axis_attention(qkv, 1, "time", rope=True).sum().backward()
    assert qkv.grad is not None


def test_a_compiled_graph_holds_the_attention_whole() -> None:
    compiled = torch.compile(axis_attention, backend="aot_eager", fullgraph=True)
    qkv = torch.randn(2, 48, 3, 3 * 2 * 16, requires_grad=True)
    expected = axis_attention(qkv, 2, "time", rope=True)
    torch.testing.assert_close(compiled(qkv, 2, "time", rope=True), expected)


def test_the_package_works_without_triton() -> None:
    run_python(
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from mdtim.kernels import axis_attention\n"
        "assert axis_attention(torch.randn(1, 4, 2, 48), 1, 'time', rope=True).isfinite().all()"
    )


INTERPRETED = """
import json
import torch
from gpu_cases import poisoned, relative_error as error
from mdtim import kernels
from mdtim.gpu import triton_attention

cases = [  # B, T, V, H, d, axis, rope, dtype
    (1, 1, 1, 1, 16, "time", True, "float32"),
    (2, 2, 7, 3, 16, "variate", False, "float32"),
    (3, 7, 3, 2, 32, "time", True, "float32"),
    (1, 7, 2, 1, 16, "variate", True, "float16"),
    (1, 16, 2, 4, 16, "time", True, "float16"),
    (1, 3, 17, 2, 32, "variate", False, "float32"),
    (2, 17, 2, 6, 16, "time", False, "float16"),
    (1, 48, 2, 4, 16, "time", True, "float32"),
    (1, 2, 48, 2, 64, "variate", True, "float16"),
    (2, 37, 3, 4, 16, "time", True, "float16"),
    (2, 37, 3, 2, 8, "time", False, "float16"),
    (1, 3, 7, 16, 8, "variate", False, "float32"),
    (1, 96, 1, 2, 16, "time", True, "float16"),
    (1, 65, 1, 2, 16, "time", True, "float32"),
    (1, 1, 65, 1, 32, "variate", False, "float16"),
    (1, 128, 1, 1, 32, "time", True, "float32"),
    (1, 1, 130, 1, 16, "time", True, "float32"),
    (1, 19, 1, 1, 64, "variate", False, "float32"),
]
results = []
for B, T, V, H, d, axis, rope, dtype in cases:
    dtype = getattr(torch, dtype)
    qkv = torch.randn(B, T, V, 3 * H * d).to(dtype).requires_grad_()
    grad = torch.randn(B, T, V, H * d).to(dtype)
    with poisoned():
        out = kernels.axis_attention(qkv, H, axis, rope=rope, implementation="triton")
        (dqkv,) = torch.autograd.grad(out, qkv, grad)
    exact = qkv.detach().double().requires_grad_()
    truth = kernels.reference_attention(exact, H, axis, rope=rope)
    (dexact,) = torch.autograd.grad(truth, exact, grad.double())
    results.append(dict(
        case=[B, T, V, H, d, axis, rope, str(dtype)],
        tolerance=1e-5 if dtype == torch.float32 else 1e-2,
        out=error(out, truth),
        grad=error(dqkv, dexact),
    ))

qkv = torch.randn(2, 3, 4, 96).transpose(1, 2).requires_grad_()  # strided as no program expects
table = kernels._make_rope_table(3, 16, qkv.device, torch.float32)
torch.library.opcheck(triton_attention._triton_attention, (qkv, table, 2, False))
compiled = torch.compile(kernels.axis_attention, backend="aot_eager", fullgraph=True)
out = compiled(qkv, 2, "time", rope=True, implementation="triton")
truth = kernels.reference_attention(qkv, 2, "time", rope=True)
torch.testing.assert_close(out, truth)
out, truth = (torch.autograd.grad(y.square().sum(), qkv)[0] for y in (out, truth))
torch.testing.assert_close(out, truth)
print(json.dumps(results))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)
def test_the_triton_operator_agrees_with_the_definition_when_interpreted() -> None:
    # In a process of its own: Triton reads the variable when the kernels are made.
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1").splitlines()[-1])
    for result in results:
        assert result["out"] <= result["tolerance"], result
        assert result["grad"] <= result["tolerance"], result


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("steps", "variates", "heads", "width"),
    [
        (48, 7, 16, 16),
        (48, 28, 16, 16),
        (1, 1, 3, 16),
        (9, 17, 4, 32),
        (48, 21, 1, 64),
        (48, 7, 8, 8),
    ],
)
@pytest.mark.parametrize("is_hopper", [True, False])
def test_a_gpu_agrees_with_the_definition_at_the_sizes_of_models(
    steps: int,
    variates: int,
    heads: int,
    width: int,
    dtype: torch.dtype,
    is_hopper: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_hopper:
        monkeypatch.setattr(cuda_attention, "fits", lambda *_: False)
    qkv = torch.randn(3, steps, variates, 3 * heads * width, device="cuda").to(dtype)
    for axis in AXES:
        rope = axis == "time" and width > 8
        worst = max(errors(qkv, heads, axis, rope, implementation="triton"))
        assert worst <= (1e-5 if dtype == torch.float32 else 1e-2), axis


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("longest", [20, 128, 300])
def test_a_gpu_agrees_with_the_definition_at_any_size(longest: int, dtype: torch.dtype) -> None:
    rng = random.Random()  # other sizes and values every time; a failure names them
    torch.seed()
    for _ in range(5):
        steps, variates = rng.randint(1, longest), rng.randint(1, longest)
        qkv = torch.randn(rng.randint(1, 3), steps, variates, 3 * 4 * 16, device="cuda").to(dtype)
        rope = rng.random() < 0.5
        for axis in AXES:
            worst = max(errors(qkv, 4, axis, rope))
            limit = 1e-5 if dtype == torch.float32 else 1e-2
            assert worst <= limit, (tuple(qkv.shape), axis, rope, worst)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("axis", AXES)
def test_a_gpu_writes_every_position(axis: Any) -> None:
    for steps, variates in [(48, 7), (5, 3), (17, 33), (100, 2)]:
        qkv = torch.randn(5, steps, variates, 3 * 4 * 16, device="cuda").bfloat16()
        with poisoned():
            assert max(errors(qkv, 4, axis, True, implementation="triton")) <= 1e-2


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_takes_batches_of_more_than_two_billion_elements() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs 60 GiB of GPU memory")
    qkv = torch.empty(4096, 48, 15, 3 * 256, device="cuda", dtype=torch.bfloat16)
    assert qkv.numel() > 2**31
    qkv.normal_()
    for axis in AXES:
        part = qkv[-2:].clone().requires_grad_()
        whole = qkv.requires_grad_()
        out = axis_attention(whole, 16, axis, rope=False, implementation="triton")
        (dwhole,) = torch.autograd.grad(out, whole, torch.ones_like(out))
        out_part = axis_attention(part, 16, axis, rope=False, implementation="triton")
        (dpart,) = torch.autograd.grad(out_part, part, torch.ones_like(out_part))
        torch.testing.assert_close(out[-2:], out_part, rtol=0, atol=0)
        torch.testing.assert_close(dwhole[-2:], dpart, rtol=0, atol=0)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("axis", AXES)
def test_a_gpu_compiles_the_operator_into_a_whole_graph(axis: Any) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 3 * 64, device="cuda")
    x = torch.randn(4, 48, 7, 64, device="cuda")

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = axis_attention(layer(x), 4, axis, rope=axis == "time", implementation="triton")
        return out.float().square().mean()

    expected = torch.autograd.grad(loss(x), layer.weight)[0]
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(x), layer.weight)[0]
    assert relative_error(compiled, expected.double()) <= 1e-2
