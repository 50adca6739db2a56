"""MDTIM with PyPOTS's own interface: a PyPOTS user swaps one import.

Sets are dicts with the key `X` of shape (samples, steps, features), NaN where missing, or paths of
HDF5 files with the same keys. Unlike PyPOTS's models it scales the values itself and needs no
sizes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdtim.baselines.pypots import import_pypots
from mdtim.imputer import MDTIMImputer
from mdtim.panel import FloatArray

import_pypots()

from pypots.imputation.base import BaseImputer  # noqa: E402

Set = dict[str, Any] | str | os.PathLike[str]


class MDTIM(BaseImputer):  # type: ignore[misc]
    """A masked diffusion imputer among PyPOTS's models.

    Parameters
    ----------
    n_steps, n_features : int
        Steps and features of every sample.
    device : str or torch.device, optional
        As in PyPOTS: a GPU if there is one.
    saving_path : str, optional
        Folder in which the fitted model is saved.
    model_saving_strategy : "best" or None
        Whether `fit` saves the model; PyPOTS's "better" and "all" need epochs, which MDTIM has not.
    verbose : bool
        Show the progress of training.
    **options
        Of :class:`mdtim.MDTIMImputer`, such as `preset`, `max_steps`, `max_minutes`, `seed`.

    Examples
    --------
    >>> from mdtim.pypots import MDTIM  # doctest: +SKIP
    >>> model = MDTIM(n_steps=48, n_features=7)  # doctest: +SKIP
    >>> model.fit({"X": windows})  # doctest: +SKIP
    >>> filled = model.impute({"X": windows})  # doctest: +SKIP
    """

    def __init__(
        self,
        n_steps: int,
        n_features: int,
        device: str | torch.device | None = None,
        saving_path: str | None = None,
        model_saving_strategy: str | None = "best",
        verbose: bool = True,
        **options: Any,
    ) -> None:
        if model_saving_strategy not in (None, "best"):
            raise ValueError(
                f'model_saving_strategy must be "best" or None, got {model_saving_strategy!r}'
            )
        super().__init__(
            device=device,
            saving_path=saving_path,
            model_saving_strategy=model_saving_strategy,
            verbose=verbose,
        )
        self.n_steps = n_steps
        self.n_features = n_features
        self.imputer = MDTIMImputer(
            window=n_steps,
            device=str(self.device),
            progress="auto" if verbose else False,
            **options,
        )

    def fit(self, train_set: Set, val_set: Set | None = None, file_type: str = "hdf5") -> None:
        """Learn from the samples of both sets.

        MDTIM hides cells for validation by itself, in windows of its own choice; a `val_set` adds
        its samples `X` to them. What is hidden in these stays hidden: `X_ori` is not looked at.
        """
        values = self._read(train_set, file_type)
        if val_set is not None:
            values = np.concatenate([values, self._read(val_set, file_type)])
        self.imputer.fit(values)
        # PyPOTS's own methods look for the network under this name.
        self.model = self.imputer.model_.network
        if self.saving_path is not None and self.model_saving_strategy == "best":
            self.save(str(Path(self.saving_path) / type(self).__name__), overwrite=True)

    def predict(
        self,
        test_set: Set,
        file_type: str = "hdf5",
        n_sampling_times: int | None = None,
        **kwargs: Any,
    ) -> dict[str, FloatArray]:
        """Fill the samples.

        Parameters
        ----------
        n_sampling_times : number of joint samples, as for PyPOTS's CSDI; the mean without

        Returns
        -------
        dict with `imputation`, (samples, steps, features), or with a number of samples in the
        second place if they were asked for; and with `std`, the standard deviation of every cell
        """
        if kwargs:
            raise ValueError(f"predict does not know {', '.join(kwargs)}")
        if not hasattr(self.imputer, "model_"):
            raise ValueError("the model is not fitted: call fit or load first")
        values = self._read(test_set, file_type)
        result = self.imputer.impute(values)
        filled = result.values
        if n_sampling_times is not None:
            filled = np.stack(result.samples(n_sampling_times, joint=True), axis=1)
        return {"imputation": filled, "std": result.std}

    def impute(
        self,
        test_set: Set,
        file_type: str = "hdf5",
        n_sampling_times: int | None = None,
        **kwargs: Any,
    ) -> FloatArray:
        """The filled samples alone, see :meth:`predict`."""
        return self.predict(test_set, file_type, n_sampling_times, **kwargs)["imputation"]

    def save(self, saving_path: str, overwrite: bool = False) -> None:
        """Save as a folder of JSON and safetensors, which :meth:`load` reads."""
        if Path(saving_path).exists() and not overwrite:
            raise ValueError(f"{saving_path} exists; pass overwrite=True to replace it")
        self.imputer.save(saving_path)

    def load(self, path: str) -> None:
        """Take a model saved by :meth:`save`."""
        loaded = MDTIMImputer.load(path, device=str(self.device))
        found = loaded.window_, loaded.n_features_in_
        if found != (self.n_steps, self.n_features):
            raise ValueError(
                f"{path} holds a model of {found[0]} steps and {found[1]} features, "
                f"this one has {self.n_steps} and {self.n_features}"
            )
        self.imputer = loaded
        self.model = loaded.model_.network

    def to(self, device: str | torch.device) -> None:
        """Move the model to another device."""
        self.device = torch.device(device)
        self.imputer.device = str(self.device)
        if self.model is not None:
            self.model.to(self.device)

    def _read(self, data: Set, file_type: str) -> FloatArray:
        if "X" not in _keys(data):
            raise ValueError(f"the set has no key 'X', but {', '.join(_keys(data))}")
        if isinstance(data, (str, os.PathLike)):
            if file_type != "hdf5":
                raise ValueError(f'file_type must be "hdf5", got {file_type!r}')
            import h5py

            with h5py.File(data, "r") as file:
                found = file["X"][:]
        else:
            found = data["X"]
        found = found.detach().cpu().numpy() if isinstance(found, torch.Tensor) else found
        values = np.asarray(found, dtype=np.float64)
        if values.ndim != 3 or values.shape[1:] != (self.n_steps, self.n_features):
            raise ValueError(
                f"X has shape {values.shape}, expected (samples, {self.n_steps}, {self.n_features})"
            )
        return values


def _keys(data: Set) -> list[str]:
    if isinstance(data, dict):
        return list(data)
    if not isinstance(data, (str, os.PathLike)):
        raise ValueError(f"a set is a dict or the path of a file, got {type(data).__name__}")
    import h5py

    with h5py.File(data, "r") as file:
        return list(file)
