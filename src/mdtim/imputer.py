"""The public estimator: a table with gaps in, a filled table out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from mdtim import doubts
from mdtim.autowindow import choose_window, longest_window
from mdtim.checkpoint import load_folder, save_folder
from mdtim.config import ModelConfig, preset
from mdtim.corrections import Corrections
from mdtim.imputation import Imputation, Origin
from mdtim.learning.fitting import FitReport, fit_network
from mdtim.model import FittedModel, JointSampler
from mdtim.panel import Panel
from mdtim.parameters import check_parameters
from mdtim.pretrained import (
    fills_at_once,
    is_pretrained,
    load_pretrained,
    pretrained_config,
)
from mdtim.progress import Listener, filling_progress, show_fit, training_progress
from mdtim.runtime import resolve_device
from mdtim.scaling import Standardizer
from mdtim.series_scales import PanelScales, SeriesScales
from mdtim.tables.table import Table, TableOptions, plain
from mdtim.threads import threads_for_batches


class MDTIMImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill the gaps of time series with a masked diffusion transformer.

    Parameters
    ----------
    window : int or "auto"
        Steps the network sees at once; "auto" looks at seasons, gaps and lengths.
    preset : str or ModelConfig
        "zero-mini" and "zero-base" are pretrained and fill at once, "auto" is the first on a CPU
        and the second on a GPU; "base" trains the second on the table, the most accurate; "small",
        "large", "paper-small", "paper-large" or a config of your own train from nothing.
    time, id : str, optional
        Names of the time column (found by itself if not given) and of the series id column.
    freq : str, optional
        Sampling period ("h", "10min"); missing timestamps become rows of the output.
    columns : sequence of str, optional
        Columns to look at and to fill, without regard to others; all numeric ones without.
    inf_as_missing : bool
        Treat ±inf as missing instead of refusing it.
    missing_values : sequence of float
        Numbers that stand for missing beside NaN, such as -999.
    seed : int
        The same seed, data and machine give the same result.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    max_steps, batch_size : int, optional
        Instead of the preset's; a number of steps asks the pretrained networks to train. Without
        a `batch_size`, a fit on a CPU takes as many windows a step as make about 6,000 cells, and
        no more than the preset's.
    adapt : bool
        Train the pretrained network further on the table, a few hundred steps or `max_steps`;
        the result is never worse on held-out cells than without.
    max_minutes : float, optional
        Time limit of `fit`. The result then depends on the machine's speed.
    num_draws : int, optional
        Stochastic tokenizations to average, instead of the preset's.
    stack : bool
        Move filled values towards linear interpolation, or the season on it, where held-out cells
        say that it helps.
    calibrate : bool
        Correct the distributions so that intervals cover what they promise on validation cells.
    validation_share : float
        Share of the rows held out for early stopping, calibration and the score; more where they
        would be less than eight windows and these are less than a quarter of the rows, and at
        least 40 % where nothing is trained, as nothing is lost by it.
    checkpoint : path, optional
        Folder for checkpoints of `fit`; an existing one is resumed.
    checkpoint_every : int
        Steps between two checkpoints.
    progress : bool, "auto" or a function
        Progress bar of the fit; "auto" shows it on a terminal. A function is called during a fit,
        and again during a fill, with the share that is done, from 0 to 1, and a few words; it is
        not saved with the model.

    Attributes
    ----------
    model_ : FittedModel
        Network, scales and calibration.
    report_ : FitReport
        How the fit went: validation score beside linear interpolation, steps, reason of stopping.
    window_ : int
        Steps per window.

    Notes
    -----
    Values are standardized per column in float64, cut into overlapping windows, scaled to each
    window's own range and given to the network as ordinal tokens, missing cells as `[MASK]`. The
    network returns a distribution for every missing cell; its mean is the filled value.

    Examples
    --------
    >>> import numpy as np
    >>> from mdtim import MDTIMImputer
    >>> steps = np.arange(200)
    >>> table = np.column_stack([np.sin(steps / 6), np.cos(steps / 6)])
    >>> table[50:53, 0] = np.nan
    >>> filled = MDTIMImputer(window=24, max_steps=2, progress=False).fit_transform(table)
    >>> bool(np.isnan(filled).any()), bool((filled[:50] == table[:50]).all())
    (False, True)
    """

    def __init__(
        self,
        window: int | str = "auto",
        preset: str | ModelConfig = "auto",
        *,
        time: str | None = None,
        id: str | None = None,
        freq: str | None = None,
        columns: Any = None,
        inf_as_missing: bool = False,
        missing_values: Sequence[float] = (),
        seed: int = 0,
        device: str = "auto",
        max_steps: int | None = None,
        batch_size: int | None = None,
        max_minutes: float | None = None,
        num_draws: int | None = None,
        adapt: bool = False,
        stack: bool = True,
        calibrate: bool = True,
        validation_share: float = 0.1,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 500,
        progress: bool | str | Listener = "auto",
    ) -> None:
        self.window = window
        self.preset = preset
        self.time = time
        self.id = id
        self.freq = freq
        self.columns = columns
        self.inf_as_missing = inf_as_missing
        self.missing_values = missing_values
        self.seed = seed
        self.device = device
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.max_minutes = max_minutes
        self.num_draws = num_draws
        self.adapt = adapt
        self.stack = stack
        self.calibrate = calibrate
        self.validation_share = validation_share
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.progress = progress

    _clock_column: str | None = None
    """The time column that was found in the table of the fit, where nobody named one."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def _repr_html_inner(self) -> str:
        """Scikit-learn's diagram, after a fit below the key numbers of the fit."""
        return self._fit_html() + str(super()._repr_html_inner())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._fit_html() + bundle["text/html"]
        return bundle

    def _fit_html(self) -> str:
        if not hasattr(self, "model_"):
            return ""
        from mdtim.report.notebook import imputer_html

        return imputer_html(self)

    # -- learning ---------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, from_: str | None = None) -> Self:
        """Learn from a table; its own gaps are never taken for values.

        Parameters
        ----------
        X : DataFrame (pandas, polars) or array, (steps, variates) or (windows, steps, variates)
        y : ignored
        from_ : "pretrained" trains the pretrained network further on this table, as `adapt` does
        """
        if from_ not in (None, "pretrained"):
            raise ValueError(f'from_ must be "pretrained" or None, got {from_!r}')
        if hasattr(self, "model_"):
            del self.model_  # a fit that fails leaves none, not one of other columns
        panel = self.read_table(X, reset=True).panel
        return self.fit_panel(panel, adapt=from_ is not None)

    def fit_panel(self, panel: Panel, *, adapt: bool = False) -> Self:
        """Learn from a panel: the second half of :meth:`fit`, after :meth:`read_table`."""
        adapt = adapt or self.adapt
        device = resolve_device(self.device)
        standardizer = Standardizer.fit(panel.values)
        doubts.of_columns(panel)
        series_scales = SeriesScales.fit(panel, standardizer)
        scales = PanelScales.of(panel, standardizer, series_scales)
        standardized = scales.forward(panel.values, panel.series_of_rows())
        doubts.of_readings(panel, standardized)
        modelled = np.flatnonzero(standardizer.varies)
        name = self._resolve_preset(device, adapt)
        # A number of steps is a wish to train.
        steps_wanted = bool(self.max_steps)
        if adapt and not is_pretrained(name):
            raise ValueError(
                f"adapting starts from a pretrained network, but the preset is {name!r}; "
                "use preset='auto', or adapt=False to train from nothing"
            )
        window = self._resolve_window(panel, long=is_pretrained(name))
        doubts.of_the_window(panel, self.window, window)
        config = self._resolve_config(
            name, device, window, max(len(modelled), 1), adapt or steps_wanted
        )
        pretrained = None
        if is_pretrained(name) and len(modelled):
            dropout = config.network.dropout
            pretrained = load_pretrained(str(name), len(modelled), device, dropout)
        network, corrections, report = None, Corrections(), FitReport.nothing_to_learn()
        if len(modelled):
            with training_progress(self.progress) as on_step, threads_for_batches(device):
                network, corrections, report = fit_network(
                    panel.select(modelled),
                    standardized[:, modelled],
                    config,
                    window,
                    device=device,
                    seed=int(self.seed),
                    validation_share=self.validation_share,
                    stack=self.stack,
                    calibrate=self.calibrate,
                    max_seconds=None if self.max_minutes is None else 60 * self.max_minutes,
                    checkpoint=None
                    if self.checkpoint is None
                    else Path(self.checkpoint).expanduser(),
                    checkpoint_every=self.checkpoint_every,
                    on_step=on_step,
                    pretrained=pretrained,
                )
        self.model_ = FittedModel(
            config,
            window,
            panel.variates,
            standardizer,
            series_scales,
            network,
            corrections,
            report,
            int(self.seed),
            panel.step_seconds,
        )
        show_fit(self.progress, report)
        doubts.of_the_fit(report)
        return self

    @property
    def report_(self) -> FitReport:
        """How the fit went: validation score beside linear interpolation, reason of stopping."""
        return self.model_.report

    @property
    def window_(self) -> int:
        """Steps per window."""
        return self.model_.window

    def read_table(self, X: Any, *, reset: bool) -> Table:
        """Check the columns as scikit-learn does, then turn the input into a table.

        Parameters
        ----------
        reset : True remembers the columns and which is the time, False compares with these
        """
        if reset:
            check_parameters(self.get_params(deep=False))
        X = plain(X)
        if hasattr(X, "columns"):
            validate_data(self, X, skip_check_array=True, reset=reset)
        else:
            shape = np.shape(X) if getattr(X, "ndim", 2) == 3 else None
            # scikit-learn knows rows and columns only: windows go through it one below the other.
            flat = X if shape is None else np.asarray(X).reshape(-1, shape[2])
            flat = validate_data(self, flat, dtype="numeric", ensure_all_finite=False, reset=reset)
            if np.asarray(X).dtype.kind != "O":  # objects would not come back as they were
                X = flat if shape is None else flat.reshape(shape)
        columns = None if self.columns is None else tuple(map(str, self.columns))
        if columns is None and not reset and hasattr(X, "columns"):
            columns = self.model_.variates  # the fit has told which are numbers
        options = TableOptions(
            time=self._clock_column if self.time is None and not reset else self.time,
            id=self.id,
            freq=self.freq,
            columns=columns,
            inf_as_missing=self.inf_as_missing,
            missing_values=tuple(self.missing_values),
        )
        table = Table.read(X, options)
        if reset:
            self._clock_column = table.clock_column
        elif table.panel.variates != self.model_.variates:
            raise ValueError(
                f"the model fills the columns {list(self.model_.variates)}, "
                f"but the numeric columns here are {list(table.panel.variates)}"
            )
        return table

    def _resolve_window(self, panel: Panel, *, long: bool) -> int:
        if self.window == "auto":
            return choose_window(panel, long=long)
        return min(int(self.window), longest_window(panel))

    def _resolve_preset(self, device: torch.device, adapt: bool) -> str | ModelConfig:
        if self.preset != "auto":
            return self.preset
        if device.type == "cuda":
            return "base" if adapt else "zero-base"
        return "zero-mini"

    def _resolve_config(
        self,
        name: str | ModelConfig,
        device: torch.device,
        window: int,
        num_variates: int,
        adapt: bool,
    ) -> ModelConfig:
        if isinstance(name, ModelConfig):
            config = name
        else:
            config = pretrained_config(name) if is_pretrained(name) else preset(name)
        changes = {
            key: value
            for key in ("max_steps", "batch_size", "num_draws")
            if (value := getattr(self, key)) is not None
        }
        if fills_at_once(name) and not adapt:
            changes["max_steps"] = 0
        if "batch_size" not in changes and device.type == "cpu":
            # Many small steps learn faster than few large ones; about 6,000 cells a step.
            size = 6_000 // (window * num_variates)
            changes["batch_size"] = min(config.training.batch_size, max(4, size))
        return config.change(**changes)

    # -- filling ----------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:
        """Fill the missing cells; everything else comes back as it was.

        Returns
        -------
        The same kind of table, with the same index, columns and dtypes.
        """
        check_is_fitted(self, "model_")
        table = self.read_table(X, reset=False)
        filled = table.panel.values.copy()
        if np.isnan(filled).any():
            on_windows = filling_progress(self.progress)
            cells = self.model_.fill(table.panel, keep_distribution=False, on_windows=on_windows)
            filled[cells.rows, cells.variates] = cells.filled
        return self._as_asked(table.restore(filled))

    def _as_asked(self, filled: Any) -> Any:
        """A polars frame as pandas, if `set_output` wants it: scikit-learn would lose its types."""
        config = getattr(self, "_sklearn_output_config", {})
        wanted = config.get("transform", get_config()["transform_output"])
        is_polars = type(filled).__module__.partition(".")[0] == "polars"
        return filled.to_pandas() if is_polars and wanted == "pandas" else filled

    def impute(self, X: Any) -> Imputation:
        """Fill the missing cells and keep their distributions."""
        check_is_fitted(self, "model_")
        table = self.read_table(X, reset=False)
        model, panel = self.model_, table.panel
        on_windows = filling_progress(self.progress)
        cells = model.fill(panel, keep_distribution=True, on_windows=on_windows)
        origin = Origin(model.window, model.report)
        return Imputation(table, cells, JointSampler(model, panel, cells), model.seed, origin)

    # -- keeping ----------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted imputer as a folder: config.json and model.safetensors."""
        check_is_fitted(self, "model_")
        params = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.get_params(deep=False).items()
        }
        params["device"] = str(self.device)
        params["missing_values"] = [float(value) for value in self.missing_values]
        params["preset"] = self.preset if isinstance(self.preset, str) else "custom"
        params["columns"] = None if self.columns is None else [str(name) for name in self.columns]
        params["checkpoint"] = None if self.checkpoint is None else str(self.checkpoint)
        params["progress"] = "auto" if callable(self.progress) else self.progress
        document = {
            "kind": "imputer",
            "params": params,
            "num_features": self.n_features_in_,
            "feature_names": list(getattr(self, "feature_names_in_", [])),
            "clock_column": self._clock_column,
            **self.model_.to_document(),
        }
        save_folder(Path(folder), document, self.model_.tensors())

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str = "auto") -> Self:
        """Read a folder written by :meth:`save`."""
        path = Path(folder)
        document, tensors = load_folder(path)
        if document.get("kind") != "imputer":
            raise ValueError(
                f"{path} holds a training checkpoint, not a finished model; "
                "finish the fit and save it first"
            )
        try:
            imputer = cls(**{**document["params"], "device": device})
            model = FittedModel.from_document(document, tensors, resolve_device(device), path)
            imputer.model_ = model
            imputer.n_features_in_ = int(document["num_features"])
            imputer._clock_column = document.get("clock_column")
            if document["feature_names"]:
                imputer.feature_names_in_ = np.asarray(document["feature_names"], dtype=object)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}/config.json is damaged: {error}") from error
        if imputer.preset == "custom":
            imputer.preset = model.config
        return imputer
