"""1-bit convolutional nets: trained in stock PyTorch, by discrete back propagation via projection.

`import onebit` needs NumPy alone; what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onebit.version import __version__

if TYPE_CHECKING:
    from onebit import models, rivals, zoo
    from onebit.backprop import (
        DiscreteBackprop,
        add_projection_gradients,
        constrain_weights,
        discrete_backprop,
    )
    from onebit.binarization import BinarizationReport, binarization_report, binarize
    from onebit.counting import Storage, binary_state_dict, storage
    from onebit.errors import ExportError, ModelFileError, UserError
    from onebit.exchange.converting import convert
    from onebit.exporting.exporter import export
    from onebit.groups import parameter_groups
    from onebit.layers import ProjectionConv2d
    from onebit.loading import load
    from onebit.modelfile import Preprocessing
    from onebit.training.nets import load_trained

__all__ = [
    "BinarizationReport",
    "DiscreteBackprop",
    "ExportError",
    "ModelFileError",
    "Preprocessing",
    "ProjectionConv2d",
    "Storage",
    "UserError",
    "__version__",
    "add_projection_gradients",
    "binarization_report",
    "binarize",
    "binary_state_dict",
    "constrain_weights",
    "convert",
    "discrete_backprop",
    "export",
    "load",
    "load_trained",
    "models",
    "parameter_groups",
    "rivals",
    "storage",
    "zoo",
]

_HOME = {
    "BinarizationReport": "binarization",
    "DiscreteBackprop": "backprop",
    "ExportError": "errors",
    "ModelFileError": "errors",
    "Preprocessing": "modelfile",
    "ProjectionConv2d": "layers",
    "Storage": "counting",
    "UserError": "errors",
    "add_projection_gradients": "backprop",
    "binarization_report": "binarization",
    "binarize": "binarization",
    "binary_state_dict": "counting",
    "constrain_weights": "backprop",
    "convert": "exchange.converting",
    "discrete_backprop": "backprop",
    "export": "exporting.exporter",
    "load": "loading",
    "load_trained": "training.nets",
    "models": "models",
    "parameter_groups": "groups",
    "rivals": "rivals",
    "storage": "counting",
    "zoo": "zoo",
}
_NEEDED_TO_TRAIN = {"torch": "PyTorch", "pydantic": "pydantic"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'onebit' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"onebit.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED_TO_TRAIN:
            raise
        from onebit.advice import install_extra

        raise ImportError(
            f"onebit.{name} needs {_NEEDED_TO_TRAIN[error.name]}: {install_extra('train')}"
        ) from error
    found = home if name == _HOME[name] else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
