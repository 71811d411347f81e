"""McDonnell's nets of one bit per weight."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from onebit.convolution import AuthorsTraining, LatentConv2d
from onebit.estimators import through
from onebit.projection import sgn


class McDonnellConv2d(LatentConv2d):
    """McDonnell's 1-bit-per-weight nets: a scale that is fixed by the layer's size, float activations.

        forward    y = conv2d(x, W_b),  W_b = sqrt(2 / n) * sgn(W)
        backward   dL/dW = dL/dW_b

    McDonnell: Training wide residual networks for deployment using a single bit for each weight. ICLR 2018,
    arXiv:1802.08530.

    To the method belong, besides, nets as the author's program has them: a batch norm of the images, the only one
    with an affine part; a shortcut that is as wide as the sum takes means over 3x3 pixels and adds channels of
    zeros, and so learns nothing. The package's nets are so (VGG16 has no shortcuts); `binarize` leaves a net as it
    is. A cosine schedule with warm restarts and plain momentum belong to it, too (`--sched restarts`, recipe
    cifar10-mcdonnell22-i64; his cosines end at a thousandth of the rate, ours at 0). Deviation: the paper's first
    and last layers are 1-bit too, and a norm stands behind the last, before the mean over the image; here they
    stay in float, as for every method.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(lr=0.1)
    REVISION: ClassVar[int] = 2  # first its nets had learned shortcuts and no norm of the images

    def quantized_weight(self) -> Tensor:
        """sqrt(2 / n) * sgn(W), with the gradient passed straight through."""
        return through(self.weight, sgn(self.weight) * self.scale_of_signs())

    def scale_of_signs(self) -> Tensor:
        """sqrt(2 / n)."""
        return self.weight.new_tensor((2 / self.weight[0].numel()) ** 0.5)
