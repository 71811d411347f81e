"""What the engines have in common: a model, what it may be called with, and its kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onebit.advice import install
from onebit.errors import UserError
from onebit.graph import Array
from onebit.imagefiles import BadImageError, Source, mode_of, read_pixels, standardised
from onebit.modelfile import Model, Preprocessing
from onebit.weights import packed_state_dict

Floats = NDArray[np.float32]


class Runnable:
    """A model that an engine runs, batch after batch: `logits = net(images)`."""

    engine: ClassVar[str]
    threads = 1  # that a call uses

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Of an image: channels, height, width."""
        return self.model.graph.input_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of what the net makes of an image: (classes,), or (channels, height, width)."""
        return self.model.values[self.model.graph.nodes[-1].name].shape

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.model.graph.input_shape))
        return f"<{self.model.description or 'a net'}: images of {size}, engine {self.engine!r}>"

    def __call__(self, x: Floats) -> Floats:
        """Images (N, channels, height, width), float32, to the outputs of the net."""
        raise NotImplementedError

    def prepare(self, *pictures: Source | Iterable[Source]) -> Floats:
        """Images as a batch for this net, by the preprocessing in its file: `net(net.prepare("photo.jpg"))`.

        pictures   image files (paths, bytes, or files that are open); arrays of uint8, (height, width, 3) RGB or
                   (height, width) grey; images of Pillow's; or lists of these, or an array (N, height, width, 3)

        Each is made grey or RGB as the net takes it, cropped, resized and normalised. Pillow does that; an array of
        the net's own size needs none. Raises UserError, which names the file or the position.
        """
        preprocessing_of(self.model)
        images = list(_one_by_one(pictures))
        if not images:
            raise UserError("there is nothing to prepare: name one image or more")
        batch = np.empty((len(images), *self.input_shape), np.float32)
        for place, image in enumerate(images):
            try:
                batch[place] = prepared(self.model, image)
            except BadImageError as error:
                raise BadImageError(f"{_named(image, place, len(images))}: {error}") from None
            except ModuleNotFoundError as error:
                if error.name != "PIL":
                    raise
                raise ImportError(
                    f"image files, and images that must be resized, need Pillow: {install('pillow')}; an array "
                    f"of uint8, {' x '.join(map(str, self.input_shape[1:]))}, does not"
                ) from error
        return batch

    def binary_state_dict(self) -> dict[str, Array]:
        """The 1-bit kernels as int8 arrays of -1 and +1, by the names of their layers: 'NAME.weight'."""
        return packed_state_dict(self.model)


def _one_by_one(pictures: Any) -> Iterator[Any]:
    """Every image, out of whatever lists they are in."""
    for each in pictures:
        is_list = isinstance(each, list | tuple | Iterator) and not hasattr(each, "read")
        if is_list or (isinstance(each, np.ndarray) and each.ndim == 4):
            yield from _one_by_one(each)
        else:
            yield each


def _named(picture: Any, place: int, count: int) -> str:
    """What an error calls an image: its file, or where it is among others."""
    name = (
        picture
        if isinstance(picture, str | os.PathLike)
        else getattr(picture, "name", getattr(picture, "filename", ""))
    )
    if isinstance(name, str | os.PathLike) and name:
        return os.fspath(name)
    return f"image {place + 1} of {count}" if count > 1 else "the image"


def prepared(model: Model, picture: Source) -> Floats:
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
        raise UserError(f"the net takes a NumPy array of float32, not a {type(x).__name__}: {_as_array(x)}")
    if x.dtype != np.float32:
        raise UserError(f"the net takes a float32 array, not {x.dtype}: {_conversion(x.dtype, model)}")
    if x.ndim != 4 or x.shape[1:] != shape:
        wanted = f"(N, {', '.join(map(str, shape))})"
        raise UserError(f"the net takes images of shape {wanted}, not {x.shape}{_mending(x.shape, shape)}")
    if not len(x):
        raise UserError("the batch is empty: the net takes one image or more")
    return x


def _as_array(x: Any) -> str:
    """What makes an array of something else: of numbers, or of images."""
    first = x
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if hasattr(x, "numpy"):
        return "use x.numpy()"
    if isinstance(first, list | tuple | int | float | np.ndarray | np.number):
        return "use numpy.asarray(x, numpy.float32)"
    return "net.prepare(x) makes one of image files, their bytes and images of Pillow's"


def _conversion(dtype: np.dtype[Any], model: Model) -> str:
    """What makes floats that the net knows of numbers of another type."""
    if dtype == np.uint8 and model.preprocessing is not None:
        return "prepare images as net.model.preprocessing says, or with net.prepare"
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
