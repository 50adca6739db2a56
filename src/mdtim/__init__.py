"""mdtim fills the gaps in time series and says how sure it is.

>>> from mdtim import MDTIMImputer
>>> MDTIMImputer(window=48, seed=0)
MDTIMImputer(window=48)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdtim.config import ModelConfig, preset
    from mdtim.doubts import ImputationWarning
    from mdtim.imputation import Imputation
    from mdtim.imputer import MDTIMImputer
    from mdtim.tables.table import TableWarning

__version__ = "0.1.0"

# Loaded on first use: `mdtim --help` and metrics must not wait for PyTorch.
_HOMES = {
    "Imputation": "mdtim.imputation",
    "ImputationWarning": "mdtim.doubts",
    "MDTIMImputer": "mdtim.imputer",
    "ModelConfig": "mdtim.config",
    "TableWarning": "mdtim.tables.table",
    "preset": "mdtim.config",
}
__all__ = [
    "Imputation",
    "ImputationWarning",
    "MDTIMImputer",
    "ModelConfig",
    "TableWarning",
    "__version__",
    "preset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mdtim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
