"""LBCNN."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.convolution import AuthorsTraining, Kernels, QuantizedConv2d, Stored, like_conv


class LocalBinaryConv2d(QuantizedConv2d):
    """LBCNN: a block of a fixed sparse convolution with -1, 0, +1, a ReLU, and a learned 1x1 convolution V.

        forward    y = conv1x1(relu(conv2d(x, B)), V),  B fixed: each entry +-1 with probability sparsity, else 0
        backward   exact, for V and x; B does not learn

    Juefei-Xu, Boddeti, Savvides: Local Binary Convolutional Neural Networks. CVPR 2017, arXiv:1608.06049.

    sparsity            0.5: the share of B's entries that are not 0, as the paper has the word
    num_intermediate    None (4 times out_channels, as the authors' program has it by default): the filters of B

    For CIFAR-10 the authors' command has other numbers: for 384 outputs 704 filters with a sparsity of 0.001, so
    that 3 or 4 entries of a filter are not 0, in nets as wide as theirs.

    The block stands for one conv, so nothing of a float conv's weight can be carried over. B is drawn when the
    layer is made, from torch's random numbers, and is saved with the net, in 8 bits. The authors'
    blocks take their input from a batch norm without a ReLU; so do the package's nets (`binarize` leaves a net's
    ReLUs alone). Deviation: the paper's blocks have a shortcut each; here shortcuts are the net's, as for every
    method.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    REVISION: ClassVar[int] = 2  # first its nets had ReLUs before the fixed filters, and these were fewer
    KERNEL = None
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(lr=1e-4)  # there are no latent kernels
    CARRIES_OVER: ClassVar[bool] = False
    fixed: Tensor

    @like_conv
    def __init__(self, *conv: Any, sparsity: float = 0.5, num_intermediate: int | None = None, **more: Any) -> None:
        if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 < sparsity <= 1:
            raise ValueError(f"sparsity={sparsity!r}: the share of entries that are not 0, more than 0, at most 1")
        self.sparsity, self.num_intermediate = sparsity, num_intermediate
        super().__init__(*conv, **more)

    def _make_parameters(self, device: Any, dtype: Any) -> None:
        count = 4 * self.out_channels if self.num_intermediate is None else self.num_intermediate
        if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count % self.groups:
            raise ValueError(f"num_intermediate={count!r}: use a positive multiple of groups = {self.groups}")
        self.num_intermediate = count
        shape = (count, self.in_channels // self.groups, *self.kernel_size)
        self.register_buffer("fixed", torch.zeros(shape, dtype=torch.int8, device=device))
        shape = (self.out_channels, count // self.groups, 1, 1)
        self.pointwise = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """B at random; V so that the block's output has the size of its input (He), whatever the size of B."""
        if self.fixed.is_meta:  # to look at only: no random numbers are taken
            return
        draw = torch.rand(self.fixed.shape)  # on the CPU, so that a seed gives the same B on every device
        self.fixed.copy_((draw < self.sparsity / 2).char() - (draw >= 1 - self.sparsity / 2).char())
        gain = (self.sparsity * self.fixed[0].numel()) ** -0.5
        nn.init.normal_(self.pointwise, std=gain * (2 / self.pointwise.shape[1]) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def quantized_weight(self) -> Tensor:
        """B."""
        return self.fixed.to(self.pointwise.dtype)

    def kernels(self) -> list[Kernels]:
        """B if it has no zeros."""
        return [Kernels(self.quantized_weight(), self.pointwise.new_ones(()))] if bool(self.fixed.all()) else []

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 as nn.Conv2d names it
        """Fixed convolution, ReLU, 1x1 convolution."""
        y = F.relu(self.convolve(input, self.quantized_weight()), inplace=True)
        return F.conv2d(y, self.pointwise, self.bias, groups=self.groups)

    def carry_over(self, weight: nn.Parameter) -> None:
        """A float conv's weight has no counterpart here: only whether it learns is taken over."""
        self.pointwise.requires_grad_(weight.requires_grad)

    @property
    def weight_bits(self) -> int:
        """Of B: -1 and +1 take 1 bit, -1, 0 and +1 take 2."""
        return 1 if self.sparsity == 1 else 2

    def stored(self) -> Stored:
        """For B a bit an entry (0 or not, if there are zeros) and a bit a sign; V in 32 bits."""
        places = 0 if self.sparsity == 1 else self.fixed.numel()
        return Stored(places + int(self.fixed.count_nonzero()), self.pointwise.numel())

    def _options(self) -> dict[str, tuple[object, object]]:
        mine = {
            "sparsity": (self.sparsity, 0.5),
            "num_intermediate": (self.num_intermediate, 4 * self.out_channels),
        }
        return super()._options() | mine
