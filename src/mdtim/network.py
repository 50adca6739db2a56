"""The factorized temporal-variate diffusion transformer.

B windows, T steps, V variates, K input bins, D width, E embedding width, C condition width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.closed_form.guesses import NUM_FEATURES, NUM_GUESSES, Guesses, Relations
from mdtim.config import NetworkConfig, TokenizerConfig
from mdtim.embedding import embed_cells
from mdtim.gpu.row_passes import BLOCK_SLOTS, HEAD_SLOTS
from mdtim.layers import (
    AxisBlock,
    TimeEmbedding,
    cast_weights,
    forward_fused,
    normalize,
    working_dtype,
)
from mdtim.runtime import own_random_state
from mdtim.tokenizer import Tokenizer
from mdtim.wanted import Wanted


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

    @classmethod
    def to_be_loaded(
        cls,
        config: NetworkConfig,
        tokenizer: TokenizerConfig,
        num_variates: int,
        weights: Mapping[str, Tensor],
    ) -> FactorizedDiT:
        """A network for some weights, not yet in it; the caller's random state stays."""
        with own_random_state():
            network = cls(config, tokenizer, num_variates)
        if (whiten_SS := weights.get("whiten_SS")) is not None:
            network._remember(len(whiten_SS))
        return network

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
        # Of all blocks and the head at once.
        self.slots = [BLOCK_SLOTS] * len(self.layers) + [HEAD_SLOTS]
        self.modulation = nn.Linear(config.condition_width, sum(self.slots) * width)
        # Beside the bins, the head corrects the prior: shift, trust, belief in each guess.
        num_corrections = 2 + NUM_GUESSES[config.prior] if config.prior != "none" else 0
        self.num_outputs = 1 if config.continuous else tokenizer.num_outputs
        self.reach = tokenizer.output_range
        self.fused_embedding = True
        """Take the operator in front of the blocks where it can run."""
        self.fused_norm = True
        """Take the operator in front of the head, or of all blocks and it, where they can run."""
        self.fused_readout = True
        """Take the operators behind the head where they can run (see :mod:`mdtim.readout`)."""
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
        for module in (self.modulation, self.head):
            nn.init.zeros_(module.weight)

    @property
    def blocks(self) -> list[AxisBlock]:
        """The layers' blocks, over time and over the variates in turn."""
        return cast("list[AxisBlock]", list(self.layers))

    @property
    def relations(self) -> Relations | None:
        """What the network knows of the relations in its table."""
        if not self.config.relates:
            return None
        return Relations(self.level_VV, self.change_VV, self.whiten_SS)

    def learn_relations(self, relations: Relations) -> None:
        """Remember the relations of a table."""
        assert self.relations is not None, "this network has no use for relations"
        if relations.whiten_SS is not None:
            self._remember(len(relations.whiten_SS))
        self.relations.copy_(relations)

    def _remember(self, size: int) -> None:
        """Make room for the dynamics of so many steps times variates: memories differ in length."""
        if self.whiten_SS is not None and len(self.whiten_SS) != size:
            self.whiten_SS = self.whiten_SS.new_zeros((size, size))

    def block_matrices(self) -> Iterator[tuple[Tensor, int]]:
        """The weights of the blocks that are matrices, and how many lie in the rows of each."""
        for block in self.blocks:
            yield block.qkv.weight, 3
            for layer in (block.out, block.up, block.down):
                yield layer.weight, 1

    def forward(self, tokens: Tokens) -> Tensor:
        """Return logits (B, T, V, K_out), or values (B, T, V, 1) in the continuous ablation."""
        return self.logits(self.say(tokens), tokens.guesses)

    def say(self, tokens: Tokens, wanted: Wanted | None = None) -> Tensor:
        """What the head says of every cell (B, T, V, P), or of the wanted ones (B, N, 1, P).

        The bins, how to correct the prior (see :meth:`prior_logits`), and zeros: products of a GPU
        want columns in eights.
        """
        modulation_BSD = self._modulation(tokens.sigma_B)
        h_BTVD = self._forward_blocks(self.embed(tokens), modulation_BSD, wanted)
        extra = -self.head.out_features % 8
        weight, bias = F.pad(self.head.weight, (0, 0, 0, extra)), F.pad(self.head.bias, (0, extra))
        return F.linear(h_BTVD, weight, bias)

    def _forward_blocks(
        self, h_BTVD: Tensor, modulation_BSD: Tensor, wanted: Wanted | None = None
    ) -> Tensor:
        """All blocks and the norm behind them, (B, T, V, D) to the same or the wanted cells."""
        blocks = self.blocks
        learns = torch.is_grad_enabled() or self.training
        if self.fused_norm and not learns and all(block.fits(h_BTVD) for block in blocks):
            return forward_fused(blocks, h_BTVD, modulation_BSD, wanted)
        *of_blocks, of_head = torch.split(modulation_BSD, self.slots, dim=1)
        of_each = (blocks, of_blocks, self._dropout_seeds(h_BTVD), cast_weights(blocks, h_BTVD))
        for block, modulation_B6D, seed, weights in zip(*of_each, strict=True):
            last = block is blocks[-1]
            h_BTVD = block(h_BTVD, modulation_B6D, seed, wanted if last else None, weights)
        return normalize(h_BTVD, of_head, fused=self.fused_norm)

    def logits(self, output_BTVP: Tensor, guesses: Guesses | None) -> Tensor:
        """Float32 logits of what the head says: its bins, around the prior if there is one."""
        output_BTVP = output_BTVP[..., : self.head.out_features].float()
        logits_BTVK, correction_BTVC = output_BTVP.tensor_split([self.num_outputs], dim=-1)
        if guesses is None:
            return logits_BTVK
        return logits_BTVK + self.prior_logits(guesses, correction_BTVC)

    def _dropout_seeds(self, h_BTVD: Tensor) -> tuple[Tensor | None, ...]:
        """A seed for the dropout of each block, where blocks are operators that draw their own."""
        count = len(self.layers)
        if not (self.training and self.config.dropout and h_BTVD.is_cuda):
            return (None,) * count
        return torch.randint(2**62, (count,), device=h_BTVD.device).unbind()

    def _modulation(self, sigma_B: Tensor) -> Tensor:
        """What modulates the blocks, one behind the other, and the head, (B, S, D)."""
        condition_BC = self.time(in_eights(sigma_B))
        modulation_BM: Tensor = self.modulation(F.silu(condition_BC))[: len(sigma_B)]
        return modulation_BM.view(len(sigma_B), sum(self.slots), self.config.width)

    def embed(self, tokens: Tokens) -> Tensor:
        """What is known of every cell before the first block, (B, T, V, D)."""
        level_BVD = None
        if self.config.level_conditioning:
            level_BVD = self.level(in_eights(tokens.level_BV3))[: len(tokens.level_BV3)]
        if self.config.continuous:
            h_BTVD = self._embed_values(tokens)
            return h_BTVD if level_BVD is None else h_BTVD + level_BVD[:, None]
        return embed_cells(*self._token_factors(tokens), level_BVD, fused=self.fused_embedding)

    def _embed_values(self, tokens: Tokens) -> Tensor:
        coordinates_BTV1 = tokens.coordinates_BTV[..., None]
        x_BTV1 = (coordinates_BTV1 - 1) / (self.num_bins - 1) * 2 - 1
        embedded_BTVD = self.value_embedding(x_BTV1)
        return torch.where(coordinates_BTV1 == 0, self.mask_embedding, embedded_BTVD)

    def _token_factors(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """What a cell is, (B, T, V, I), and what each of it brings along, (V or 1, I, D).

        Some of the two tokens beside its coordinate, and what is known of its guesses.
        """
        weights = [self._token_table()]
        if tokens.guesses is not None:
            weights.append(self.guess.weight.mT.expand(len(self.tables), -1, -1))
        # One product for all, of a depth in eights, as a GPU likes it.
        extra = -sum(weight.shape[1] for weight in weights) % 8
        weights_VID = F.pad(torch.cat(weights, dim=1), (0, 0, 0, extra))
        return self._inputs(tokens, weights_VID.shape[1]), weights_VID

    def _inputs(self, tokens: Tokens, depth: int) -> Tensor:
        """How much of each token a cell is, then what is known of its guesses, then zeros."""
        coordinates_BTV = tokens.coordinates_BTV
        # Between two tokens a cell is some of both. `[MASK]` is 0 and values start at 1, so the
        # two never mix.
        token_BTV = coordinates_BTV.floor().clamp_max(self.num_bins - 1)
        share_BTV = coordinates_BTV - token_BTV
        inputs_BTVI = coordinates_BTV.new_zeros(
            (*coordinates_BTV.shape, depth), dtype=working_dtype(coordinates_BTV)
        )
        shares_BTV2 = torch.stack([1 - share_BTV, share_BTV], dim=-1).to(inputs_BTVI.dtype)
        index_BTV2 = torch.stack([token_BTV, token_BTV + 1], dim=-1).long()
        inputs_BTVI.scatter_(-1, index_BTV2, shares_BTV2)
        if tokens.guesses is not None:
            features_BTVF = tokens.guesses.features_BTVF
            begin = self.num_bins + 1
            inputs_BTVI[..., begin : begin + features_BTVF.shape[-1]] = features_BTVF
        return inputs_BTVI

    def _token_table(self) -> Tensor:
        """(V or 1, K + 1, D) all that a token brings along, as it is the same for every cell."""
        table_VKD = self.project(self.tables)
        mixed_VKD = table_VKD + self.mix(table_VKD)
        table_VKD = torch.cat([table_VKD[:, :1], mixed_VKD[:, 1:]], dim=1)
        return table_VKD if self.config.prior == "none" else table_VKD + self.guess.bias

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
