"""What a net is called with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.modelfile import Model


def checked_input(x: Any, model: Model) -> NDArray[np.float32]:
    """The batch itself; raises UserError if it is not one for this net."""
    shape = model.graph.input_shape
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise UserError(f"the net takes a float32 array, not {kind}")
    if x.ndim != 4 or x.shape[1:] != shape:
        raise UserError(f"the net takes images of shape (N, {', '.join(map(str, shape))}), not {x.shape}")
    if not len(x):
        raise UserError("the batch is empty: the net takes one image or more")
    return x
