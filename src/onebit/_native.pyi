# What native/bindings.cpp offers.

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float32]
_Activation: TypeAlias = tuple[_Floats | None, float, float]
_Pair: TypeAlias = tuple[int, int]
_Sides: TypeAlias = tuple[int, int, int, int]

def has_isa(isa: str) -> bool: ...

class Output:
    def __init__(
        self,
        *,
        channels: int,
        scale: _Floats | None,
        shift: _Floats | None,
        first: _Activation,
        residual: int,
        second: _Activation,
        numbers_to: int,
        bits_to: int,
        thresholds: _Floats | None,
        at_most: NDArray[np.uint8] | None,
        levels_to: int = ...,
        per_unit: float = ...,
        high: int = ...,
    ) -> None: ...

class Net:
    def __init__(self, isa: str) -> None: ...
    def value(self, kind: int, channels: int, height: int, width: int, offset: int, low: int = ...) -> None: ...
    def bconv2d(
        self,
        input: int,
        kernel: _Pair,
        stride: _Pair,
        dilation: _Pair,
        padding: _Sides,
        groups: int,
        outputs: int,
        signs: NDArray[np.int8],
        projections: int,
        masks: NDArray[np.int8] | None,
        output: Output,
    ) -> None: ...
    def conv2d(
        self,
        input: int,
        kernel: _Pair,
        stride: _Pair,
        dilation: _Pair,
        padding: _Sides,
        groups: int,
        outputs: int,
        weight: _Floats,
        keeps_zeros: bool,
        output: Output,
    ) -> None: ...
    def level_conv2d(
        self,
        input: int,
        kernel: _Pair,
        stride: _Pair,
        dilation: _Pair,
        padding: _Sides,
        groups: int,
        outputs: int,
        weight: NDArray[np.int8],
        output: Output,
    ) -> None: ...
    def again(self, step: int, input: int, output: Output) -> None: ...
    def pointwise(self, input: int, output: Output) -> None: ...
    def pool(
        self,
        input: int,
        kernel: _Pair,
        stride: _Pair,
        dilation: _Pair,
        padding: _Sides,
        pool: int,
        sizes: _Pair,
        output: Output,
    ) -> None: ...
    def adaptive_mean(self, input: int, sizes: _Pair, output: Output) -> None: ...
    def binary(self, left: int, right: int, output: int, binary: int) -> None: ...
    def unary(self, input: int, output: int, unary: int) -> None: ...
    def threshold(
        self, input: int, output: int, thresholds: NDArray[np.int32], at_most: NDArray[np.uint8]
    ) -> None: ...
    def copy(self, input: int, from_: int, output: int, to: int, channels: int) -> None: ...
    def pad(self, input: int, output: int, padding: _Sides, mode: int) -> None: ...
    def reshape(self, input: int, output: int) -> None: ...
    def finish(self, output: int, threads: int = 1, is_long: bool = ...) -> None: ...
    def run(
        self, images: _Floats, is_nhwc: bool, outputs: _Floats, step_seconds: NDArray[np.float64] | None
    ) -> None: ...
    @property
    def steps(self) -> int: ...
    def step_kernel(self, step: int) -> tuple[str, str]: ...
    def workspace_bytes(self, threads: int = 1) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
