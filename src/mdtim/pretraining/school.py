"""Lessons from made-up tables, for a network that should know none in particular."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mdtim.diffusion import tokenize
from mdtim.inference import Predictor
from mdtim.learning.lessons import Lesson
from mdtim.network import FactorizedDiT
from mdtim.pretraining.gaps import draw_gaps
from mdtim.pretraining.pool import Pool, Shape
from mdtim.readout import cell_probs
from mdtim.runtime import precision

SHAPES = (
    Shape(256, 48, 8),
    Shape(96, 128, 8),
    Shape(64, 48, 32),
    Shape(512, 64, 3),
    Shape(12, 512, 8),
    Shape(64, 96, 16),
    Shape(32, 128, 24),
    Shape(24, 256, 8),
    Shape(512, 128, 1),
)
"""In turn; about 100,000 cells each, half of that in long windows, where a cell costs more."""
TABLES = 768
RENEWED_EVERY = 120
"""Turns of a shape after which its tables are replaced by new ones."""
VALIDATION_SEED = 2**31
LEAST_TIME = 0.02


@dataclass(eq=False)
class School:
    """Made-up tables of several shapes: a :class:`mdtim.learning.lessons.Source`.

    Parameters
    ----------
    device : where tables are made and windows lie
    seed : of the tables; the gaps are drawn by the trainer's generator
    shapes : of the windows, in turn
    """

    device: torch.device
    seed: int
    shapes: tuple[Shape, ...] = SHAPES
    tables: int = TABLES
    _pools: dict[Shape, Pool] = field(default_factory=dict, init=False)
    _editions: dict[Shape, int] = field(default_factory=dict, init=False)
    _exams: dict[Shape, Lesson] = field(default_factory=dict, init=False)

    @property
    def num_variates(self) -> int:
        """V of the widest shape."""
        return max(shape.num_variates for shape in self.shapes)

    @property
    def fingerprint(self) -> str:
        """Of what the tables are made from."""
        return f"{self.seed} {self.tables} {self.shapes}"

    def prepare(self, step: int) -> Hashable:
        """Take the step's shape, and make new tables of it now and then."""
        turn, place = divmod(step, len(self.shapes))
        shape = self.shapes[place]
        edition = turn // RENEWED_EVERY
        if self._editions.get(shape) != edition:
            key = (self.seed * 1_000_003 + edition) * len(self.shapes) + place
            pool = Pool.draw(key, self.tables, shape, self.device)
            if shape in self._pools:
                self._pools[shape].replace(pool)
            else:
                self._pools[shape] = pool
            self._editions[shape] = edition
        return shape

    def draw(self, kind: Hashable, network: FactorizedDiT, generator: torch.Generator) -> Lesson:
        """Windows of a shape with gaps of every kind."""
        assert isinstance(kind, Shape)
        return _lesson(self._pools[kind], kind, generator)

    @torch.no_grad()
    def error(self, predictor: Predictor) -> float:
        """Mean over the shapes of the error relative to that of linear interpolation."""
        ratios = self.ratios(predictor)
        return sum(ratios.values()) / len(ratios)

    @torch.no_grad()
    def ratios(self, predictor: Predictor) -> dict[Shape, float]:
        """Error over hidden cells relative to linear interpolation, for each shape."""
        ratios = {}
        for place, shape in enumerate(self.shapes):
            error, straight = _errors(predictor, self._exam(place, shape))
            ratios[shape] = float(error / straight)
        return ratios

    def _exam(self, place: int, shape: Shape) -> Lesson:
        """The same windows every time, from tables that no step sees."""
        if shape not in self._exams:
            pool = Pool.draw(VALIDATION_SEED + place, self.tables, shape, self.device)
            generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED + place)
            self._exams[shape] = _lesson(pool, shape, generator)
        return self._exams[shape]


def _lesson(pool: Pool, shape: Shape, generator: torch.Generator) -> Lesson:
    values, relations = pool.windows(shape, generator)
    hidden = draw_gaps(values, generator)
    time = hidden.float().mean((1, 2)).clamp(LEAST_TIME, 1.0)
    return Lesson(values, torch.ones_like(hidden), hidden, time, relations)


def _errors(predictor: Predictor, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Mean absolute errors of the network and of the line, in standardized units."""
    network = predictor.network
    tokens, scale = tokenize(
        predictor.tokenizer,
        lesson.values_BTV,
        ~lesson.hidden_BTV,
        prior=network.config.prior,
        relations=lesson.relations,
    )
    with precision(predictor.device):
        probs = cell_probs(network, tokens)
    x = probs @ network.centers
    truth = scale.normalize(lesson.values_BTV)
    assert tokens.guesses is not None
    line = tokens.guesses.values_BTVG[..., 0]
    weight = lesson.hidden_BTV * scale.half_B1V
    error, straight = (((one - truth).abs() * weight).sum() for one in (x, line))
    return error, straight
