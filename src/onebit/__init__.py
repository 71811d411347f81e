"""1-bit convolutional nets: trained in stock PyTorch, by discrete back propagation via projection.

`import onebit` needs NumPy alone; what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onebit.version import __version__

if TYPE_CHECKING:
    from onebit import models, rivals
    from onebit.backprop import (
        DiscreteBackprop,
        add_projection_gradients,
        constrain_weights,
        discrete_backprop,
    )
    from onebit.binarization import BinarizationReport, binarization_report, binarize
    from onebit.counting import Storage, storage
    from onebit.groups import parameter_groups
    from onebit.layers import ProjectionConv2d

__all__ = [
    "BinarizationReport",
    "DiscreteBackprop",
    "ProjectionConv2d",
    "Storage",
    "__version__",
    "add_projection_gradients",
    "binarization_report",
    "binarize",
    "constrain_weights",
    "discrete_backprop",
    "models",
    "parameter_groups",
    "rivals",
    "storage",
]

_HOME = {
    "BinarizationReport": "binarization",
    "DiscreteBackprop": "backprop",
    "ProjectionConv2d": "layers",
    "Storage": "counting",
    "add_projection_gradients": "backprop",
    "binarization_report": "binarization",
    "binarize": "binarization",
    "constrain_weights": "backprop",
    "discrete_backprop": "backprop",
    "models": "models",
    "parameter_groups": "groups",
    "rivals": "rivals",
    "storage": "counting",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'onebit' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"onebit.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"onebit.{name} needs PyTorch: pip install 'onebit[train]'") from error
    found = home if name == _HOME[name] else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
