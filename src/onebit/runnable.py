"""What the engines have in common: a model, what it may be called with, and its kernels."""

from __future__ import annotations

import os
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.graph import Array
from onebit.imagefiles import mode_of, read_pixels, standardised
from onebit.modelfile import Model, Preprocessing
from onebit.weights import packed_state_dict

Floats = NDArray[np.float32]


class Runnable:
    """A model that an engine runs, batch after batch: `logits = net(images)`."""

    engine: ClassVar[str]
    threads = 1  # that a call uses

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.model.graph.input_shape))
        return f"<{self.model.description or 'a net'}: images of {size}, engine {self.engine!r}>"

    def __call__(self, x: Floats) -> Floats:
        """Images (N, channels, height, width), float32, to the outputs of the net."""
        raise NotImplementedError

    def prepare(self, *pictures: str | os.PathLike[str] | IO[bytes]) -> Floats:
        """Image files (paths, or files that are open) as a batch for this net, by the preprocessing in its file."""
        return np.stack([prepared(self.model, picture) for picture in pictures])

    def binary_state_dict(self) -> dict[str, Array]:
        """The 1-bit kernels as int8 arrays of -1 and +1, by the names of their layers: 'NAME.weight'."""
        return packed_state_dict(self.model)


def prepared(model: Model, picture: str | os.PathLike[str] | IO[bytes]) -> Floats:
    """One image (channels, height, width) for a model; raises BadImageError if the picture can't be read."""
    mean, std, share = preprocessing_of(model)
    return standardised(read_pixels(picture, model.graph.input_shape, share), mean, std)


def preprocessing_of(model: Model) -> Preprocessing:
    """How a picture becomes its input; raises UserError if the file does not say, or no image file can be that."""
    if model.preprocessing is None:
        raise UserError(
            "the model file does not say how a picture becomes its input: export it with "
            "preprocessing=onebit.Preprocessing(mean, std)"
        )
    mode_of(model.graph.input_shape[0])
    return model.preprocessing


def checked_input(x: Any, model: Model) -> Floats:
    """The batch itself; raises UserError if it is not one for this net."""
    shape = model.graph.input_shape
    if not isinstance(x, np.ndarray):
        how = "x.numpy()" if hasattr(x, "numpy") else "numpy.asarray(x, numpy.float32)"
        raise UserError(f"the net takes a NumPy array of float32, not a {type(x).__name__}: use {how}")
    if x.dtype != np.float32:
        raise UserError(f"the net takes a float32 array, not {x.dtype}: {_conversion(x.dtype, model)}")
    if x.ndim != 4 or x.shape[1:] != shape:
        wanted = f"(N, {', '.join(map(str, shape))})"
        raise UserError(f"the net takes images of shape {wanted}, not {x.shape}{_mending(x.shape, shape)}")
    if not len(x):
        raise UserError("the batch is empty: the net takes one image or more")
    return x


def _conversion(dtype: np.dtype[Any], model: Model) -> str:
    """What makes floats that the net knows of numbers of another type."""
    if dtype == np.uint8 and model.preprocessing is not None:
        return "prepare images as net.model.preprocessing says"
    if dtype == np.uint8:
        return "prepare images as those that it was trained on"
    return "use x.astype(numpy.float32)" if dtype.kind in "fiub" else "give it real numbers"


def _mending(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What makes a batch of the wanted shape of one that is nearly so."""
    channels_last = (*wanted[1:], wanted[0])
    if found == wanted:
        return ": x[None] makes a batch of one image"
    if found == channels_last:
        return ": x.transpose(2, 0, 1)[None] makes a batch of one image"
    if found[1:] == channels_last:
        return ": x.transpose(0, 3, 1, 2) makes them so, without a copy"
    return ""
