"""The nets of the paper, each in float or with 1-bit convolutions.

`width` is the paper's i, the channels of the first stage of the full-precision kernels; the tensors are
width * num_projections wide (so that a float net is as wide as its twin with J projections). `method` and
`activation_bits` are as for `onebit.binarize`; a method whose own nets have another structure gets it: a shortcut
round every conv (bireal; but for vgg16, which has none), BN before the sign (xnor), no ReLU before the fixed
filters (lbcnn), norms without an affine part but for one of the images, and shortcuts that learn nothing
(mcdonnell). All take images (N, 3, H, W) unless `in_channels` says otherwise.
"""

from onebit.models.resnet import resnet18
from onebit.models.vgg import vgg16
from onebit.models.wrn import wrn22, wrn40

__all__ = ["resnet18", "vgg16", "wrn22", "wrn40"]
