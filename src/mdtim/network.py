"""The factorized temporal-variate diffusion transformer.

B windows, T steps, V variates, K input bins, D width, E embedding width, C condition width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.config import NetworkConfig, TokenizerConfig
from mdtim.guesses import NUM_FEATURES, NUM_GUESSES, Guesses, Relations
from mdtim.layers import AxisBlock, TimeEmbedding, modulate
from mdtim.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Tokens:
    """One batch as the network sees it."""

    coordinates_BTV: Tensor
    """Float tokens: 0 is `[MASK]`, 1..K are bins (see :mod:`mdtim.tokenizer`)."""
    sigma_B: Tensor
    """Total noise of each window, the condition of every block."""
    level_BV3: Tensor
    guesses: Guesses | None
    """Closed-form guesses, if the network starts from them."""

    def drawn(self, coordinates: Sequence[Tensor]) -> Tokens:
        """The same windows once for each draw of their coordinates, one draw behind the other."""
        times = len(coordinates)
        guesses = self.guesses
        if guesses is not None:
            guesses = Guesses(
                guesses.values_BTVG.repeat(times, 1, 1, 1),
                guesses.features_BTVF.repeat(times, 1, 1, 1),
                guesses.nearest_BTV.repeat(times, 1, 1),
            )
        return Tokens(
            torch.cat(list(coordinates)),
            self.sigma_B.repeat(times),
            self.level_BV3.repeat(times, 1, 1),
            guesses,
        )


def in_eights(x_BX: Tensor) -> Tensor:
    """Repeat the last window until their number is a multiple of eight, on a CPU.

    Its matrix products give a row the same bits beside any multiple of eight rows, but not beside
    three or five. Cells come in eights if the window is a multiple of eight steps; what is there
    once for each window must be filled up, so that the answer hangs on no batch size.
    """
    missing = -len(x_BX) % 8
    if not missing or x_BX.device.type != "cpu":
        return x_BX
    return torch.cat([x_BX, x_BX[-1:].expand(missing, *x_BX.shape[1:])])


class FactorizedDiT(nn.Module):
    """Tokens in, one distribution over the output bins for every cell out.

    Parameters
    ----------
    config : NetworkConfig
    tokenizer : TokenizerConfig
        Sizes of the two grids.
    num_variates : int
        V; each variate has its own token table unless the config shares one.
    """

    centers: Tensor
    """(K_out,) values of the output bins, in window units."""
    level_VV: Tensor
    change_VV: Tensor
    whiten_SS: Tensor | None
    """The relations of the table, where the network starts from them; saved with the weights."""

    def __init__(
        self, config: NetworkConfig, tokenizer: TokenizerConfig, num_variates: int
    ) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.num_bins = tokenizer.num_bins
        tables = 1 if config.shared_embedding else num_variates
        if config.continuous:
            self.value_embedding = nn.Linear(1, width)
            self.mask_embedding = nn.Parameter(torch.empty(width))
        else:
            self.tables = nn.Parameter(
                torch.empty(tables, self.num_bins + 1, config.embedding_width)
            )
            self.project = nn.Linear(config.embedding_width, width)
            self.mix = nn.Linear(width, width)
        if config.level_conditioning:
            self.level = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, width))
        if config.prior != "none":
            self.guess = nn.Linear(NUM_FEATURES[config.prior], width)
            # log spread of the untrained output around the guess, and how the spread grows with
            # the distance to the nearest visible cell.
            self.prior = nn.Parameter(torch.tensor([-2.3, 0.5]))
            # Which guess to believe: smoothing most, both krigings more than the line, the plain
            # relation least.
            believed = [0.0, -1.0, 1.0, 1.0, 1.5][: NUM_GUESSES[config.prior]]
            self.belief = nn.Parameter(torch.tensor(believed))
        self.time = TimeEmbedding(config.condition_width)
        self.layers = nn.ModuleList()
        for _ in range(config.num_layers):
            self.layers.append(AxisBlock(config, "time"))
            self.layers.append(AxisBlock(config, "variate"))
        self.head_modulation = nn.Linear(config.condition_width, 2 * width)
        # Beside the bins, the head corrects the prior: shift, trust, belief in each guess.
        num_corrections = 2 + NUM_GUESSES[config.prior] if config.prior != "none" else 0
        self.num_outputs = 1 if config.continuous else tokenizer.num_outputs
        self.head = nn.Linear(width, self.num_outputs + num_corrections)
        self.register_buffer("centers", Tokenizer(tokenizer).centers(), persistent=False)
        if config.relates:
            unknown = Relations.none(num_variates, dynamics=config.prior == "dynamics")
            self.register_buffer("level_VV", unknown.level_VV)
            self.register_buffer("change_VV", unknown.change_VV)
            self.register_buffer("whiten_SS", unknown.whiten_SS)
        self.initialize()

    def initialize(self) -> None:
        """Set all initial weights; gates and head are zero, so a block starts as identity."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.config.continuous:
            nn.init.normal_(self.mask_embedding, std=0.02)
        else:
            nn.init.normal_(self.tables, std=1.0 / self.tables.shape[-1] ** 0.5)
            # Neighbouring tokens start alike, as ordinal values should; `[MASK]` stays apart.
            smooth = torch.linspace(-1, 1, self.num_bins)[:, None]
            wave = torch.linspace(0.5, 8.0, self.tables.shape[-1])
            with torch.no_grad():
                self.tables[:, 1:] = (
                    torch.sin(smooth * wave + torch.arange(self.tables.shape[-1]))
                    / (self.tables.shape[-1] ** 0.5)
                    + 0.1 * self.tables[:, 1:]
                )
        for block in self.layers:
            assert isinstance(block, AxisBlock)
            nn.init.zeros_(block.modulation.weight)
        for module in (self.head_modulation, self.head):
            nn.init.zeros_(module.weight)

    @property
    def relations(self) -> Relations | None:
        """What the network knows of the relations in its table."""
        if not self.config.relates:
            return None
        return Relations(self.level_VV, self.change_VV, self.whiten_SS)

    def learn_relations(self, relations: Relations) -> None:
        """Remember the relations of a table."""
        assert self.relations is not None, "this network has no use for relations"
        self.relations.copy_(relations)

    def block_matrices(self) -> Iterator[tuple[Tensor, int]]:
        """The weights of the blocks that are matrices, and how many lie in the rows of each."""
        for block in self.layers:
            assert isinstance(block, AxisBlock)
            yield block.qkv.weight, 3
            for layer in (block.out, block.up, block.down):
                yield layer.weight, 1

    def forward(self, tokens: Tokens) -> Tensor:
        """Return logits (B, T, V, K_out), or values (B, T, V, 1) in the continuous ablation."""
        masked_BTV1 = (tokens.coordinates_BTV == 0)[..., None]
        h_BTVD = self.embed(tokens.coordinates_BTV, masked_BTV1)
        if self.config.level_conditioning:
            level_BVD = self.level(in_eights(tokens.level_BV3))[: len(h_BTVD)]
            h_BTVD = h_BTVD + level_BVD[:, None]
        if tokens.guesses is not None:
            h_BTVD = h_BTVD + self.guess(tokens.guesses.features_BTVF)
        condition_BC = self.time(in_eights(tokens.sigma_B))
        for block, seed in zip(self.layers, self._dropout_seeds(h_BTVD), strict=True):
            h_BTVD = block(h_BTVD, condition_BC, seed)
        modulation = self.head_modulation(F.silu(condition_BC))[: len(h_BTVD)]
        shift, scale = modulation.to(h_BTVD.dtype).chunk(2, dim=-1)
        h_BTVD = modulate(F.layer_norm(h_BTVD, h_BTVD.shape[-1:]), shift, scale)
        output: Tensor = self.head(h_BTVD).float()
        if tokens.guesses is None:
            return output
        logits, correction = output.tensor_split([self.num_outputs], dim=-1)
        return logits + self.prior_logits(tokens.guesses, correction)

    def _dropout_seeds(self, h_BTVD: Tensor) -> tuple[Tensor | None, ...]:
        """A seed for the dropout of each block, where blocks are operators that draw their own."""
        count = len(self.layers)
        if not (self.training and self.config.dropout and h_BTVD.is_cuda):
            return (None,) * count
        return torch.randint(2**62, (count,), device=h_BTVD.device).unbind()

    def embed(self, coordinates_BTV: Tensor, masked_BTV1: Tensor) -> Tensor:
        """Embed coordinates as the mix of their two neighbouring tokens, (B, T, V, D)."""
        if self.config.continuous:
            x = (coordinates_BTV[..., None] - 1) / (self.num_bins - 1) * 2 - 1
            return torch.where(masked_BTV1, self.mask_embedding, self.value_embedding(x))
        # Hat functions: 1 at the token itself, linear to 0 at its neighbours. `[MASK]` is 0 and
        # values start at 1, so the two never mix.
        index = torch.arange(self.num_bins + 1, device=coordinates_BTV.device)
        hats_BTVK = (1 - (coordinates_BTV[..., None] - index).abs()).clamp_min(0)
        tables = self.tables.expand(coordinates_BTV.shape[2], -1, -1)
        embedded = torch.einsum("btvk,vke->btve", hats_BTVK.to(tables.dtype), tables)
        h_BTVD: Tensor = self.project(embedded)
        return torch.where(masked_BTV1, h_BTVD, h_BTVD + self.mix(h_BTVD))

    def prior_logits(self, guesses: Guesses, correction_BTVC: Tensor) -> Tensor:
        """Log-density around the guessed value; all corrections start at zero.

        Parameters
        ----------
        correction_BTVC : how far to move the centre, in window units; the log of how much narrower
            to make it; and for each guess, how much more to believe it
        """
        shift_BTV1, trust_BTV1, belief_BTVG = correction_BTVC.tensor_split([1, 2], dim=-1)
        log_spread = self.prior[0] + self.prior[1] * guesses.nearest_BTV.clamp_min(1).log()
        spread_BTV1 = (log_spread[..., None] - trust_BTV1).clamp(-4, 3).exp()
        weight_BTVG = F.softmax(self.belief + belief_BTVG, dim=-1)
        guess_BTV1 = (weight_BTVG * guesses.values_BTVG).sum(-1, keepdim=True)
        return -0.5 * ((self.centers - guess_BTV1 - shift_BTV1) / spread_BTV1) ** 2
