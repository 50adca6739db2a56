"""How weights move: AdamW or Muon behind a clipped gradient, and a moving average that is kept.

On a GPU the learning rate and the pace of the average are tensors, so that a captured step reads
what they are when it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mdtim.config import TrainingConfig
from mdtim.learning.muon import Muon
from mdtim.network import FactorizedDiT


class MovingAverage:
    """Exponential moving average of a network's weights."""

    def __init__(self, network: FactorizedDiT, decay: float) -> None:
        self.decay = decay
        self.live: list[Tensor] = list(network.parameters())
        self.average = [parameter.detach().clone() for parameter in self.live]
        self.pace = torch.zeros((), device=self.live[0].device)

    def set_pace(self, step: int) -> None:
        """How far to move in this step; further in the first ones, which start from noise."""
        self.pace.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the live weights."""
        difference = torch._foreach_sub(self.live, self.average)
        torch._foreach_mul_(difference, self.pace)
        torch._foreach_add_(self.average, difference)

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Run a block with the averaged weights in the network."""
        kept = [parameter.detach().clone() for parameter in self.live]
        torch._foreach_copy_(self.live, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self.live, kept)


class Optimizer:
    """AdamW with a clipped gradient and a learning rate that is set before every step.

    With `optimizer="muon"` the matrices of the blocks follow :class:`mdtim.learning.muon.Muon`.
    """

    def __init__(self, network: FactorizedDiT, config: TrainingConfig) -> None:
        self.parameters = list(network.parameters())
        self.clip_norm = config.clip_norm
        on_gpu = self.parameters[0].is_cuda
        rate: float | Tensor = config.learning_rate
        if on_gpu:
            rate = torch.tensor(rate, device=self.parameters[0].device)
        matrices = list(network.block_matrices()) if config.optimizer == "muon" else []
        self.muon = Muon(matrices, config.weight_decay)
        self.adamw = torch.optim.AdamW(
            [weight for weight in self.parameters if weight not in self.muon.momentum],
            lr=rate,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self.rate = config.learning_rate

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.rate = rate
        (group,) = self.adamw.param_groups
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def differentiate(self, loss: Tensor) -> None:
        """Find the gradient of a loss."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]

    def gradients(self) -> list[Tensor]:
        """The gradients that were found, to be added up over processes."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def step(self) -> None:
        """Follow the gradient, as far as the clip and the rate allow."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm, foreach=True)
        self.adamw.step()
        self.muon.step(self.adamw.param_groups[0]["lr"])

    def memory(self, parameter: Tensor) -> dict[str, Tensor]:
        """What is kept of a parameter's past gradients, to be saved."""
        if parameter in self.muon.momentum:
            return {"momentum": self.muon.momentum[parameter]}
        return dict(self.adamw.state.get(parameter, {}))

    def remember(self, parameter: Tensor, memory: dict[str, Tensor]) -> None:
        """Take up what :meth:`memory` returned; nothing is kept before the first step."""
        if parameter in self.muon.momentum:
            self.muon.momentum[parameter].copy_(memory["momentum"])
        elif memory:
            on_gpu = parameter.is_cuda
            self.adamw.state[parameter] = {
                # A CPU's step count stays where its weights are; a GPU's must be captured.
                key: value.to(parameter.device if on_gpu or key != "step" else "cpu")
                for key, value in memory.items()
            }
