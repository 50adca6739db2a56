from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mdtim.config import PRESETS, ModelConfig, NetworkConfig, TokenizerConfig, preset
from mdtim.windows import every_window


def test_paper_presets_follow_the_paper() -> None:
    paper = preset("paper-large")
    assert (paper.network.width, paper.network.num_heads, paper.network.num_layers) == (256, 16, 5)
    assert paper.network.dropout == 0.2
    assert preset("paper-small").network.dropout == 0.3
    assert paper.tokenizer.num_bins == 40
    assert paper.tokenizer.num_outputs == 60
    assert paper.training.learning_rate == 3e-4
    assert paper.training.warmup_steps == 2_500
    assert paper.training.max_steps == 10_000
    assert paper.training.batch_size == 256
    assert paper.training.ema_decay == 0.995
    assert paper.training.clip_norm == 1.0
    assert paper.training.weight_decay == 0.0
    assert paper.inference.num_draws == 10
    assert not paper.tokenizer.interpolated
    assert not paper.diffusion.mixed_masks
    assert not paper.diffusion.matched_time
    assert not paper.network.level_conditioning
    assert paper.network.prior == "none"
    assert not paper.training.cosine


def test_our_presets_have_the_papers_sizes_and_every_improvement() -> None:
    for ours, theirs in (("small", "paper-small"), ("large", "paper-large")):
        one, other = preset(ours), preset(theirs)
        assert one.network.width == other.network.width
        assert one.network.num_layers == other.network.num_layers
        assert one.tokenizer.interpolated
        assert one.network.level_conditioning
        assert one.tokenizer.min_range == 0.05
        assert one.diffusion.matched_time
        assert one.diffusion.mixed_masks
        assert one.training.cosine


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_json(name: str) -> None:
    config = preset(name)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_config_with_unknown_or_missing_fields_is_refused() -> None:
    tree = preset("small").to_dict()
    tree["network"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        ModelConfig.from_dict(tree)


def test_each_option_can_be_changed_alone_and_an_unknown_one_is_named() -> None:
    assert not preset("large").change(cosine=False).training.cosine
    with pytest.raises(ValueError, match="no option 'colour'"):
        preset("large").change(colour="red")


def test_impossible_settings_are_refused_with_the_value() -> None:
    with pytest.raises(ValueError, match="num_bins must be at least 2, got 1"):
        TokenizerConfig(num_bins=1)
    with pytest.raises(ValueError, match="even multiple"):
        NetworkConfig(width=10, num_heads=4)
    with pytest.raises(ValueError, match='prior="none"'):
        NetworkConfig(continuous=True)
    with pytest.raises(ValueError, match="unknown preset 'huge'"):
        preset("huge")


def test_passes_and_views_limit_the_steps() -> None:
    training = preset("base").training
    assert (training.max_passes, training.max_views, training.batch_size) == (40, 768, 64)
    one = np.array([0, 1_000])
    assert training.limited_to(every_window(one, 48)).max_steps == 250, "768 * 1,000 / (64 * 48)"
    assert training.limited_to(every_window(one, 96)).max_steps == 125, "a window shows more rows"
    apart = np.arange(0, 4_801, 48)
    assert training.limited_to(every_window(apart, 48)).max_steps == 63, "40 * 100 / 64"
    short = every_window(np.arange(0, 1_201, 12), 48)
    by_views = replace(training, max_passes=None)
    assert by_views.limited_to(short).max_steps == 1_200, "nothing is seen past a series' end"
    assert training.limited_to(every_window(np.array([0, 10**6]), 48)) == training
    endless = preset("small").training
    assert endless.limited_to(every_window(one, 48)) == endless
