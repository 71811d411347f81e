"""The methods that the paper compares with: one file a method, one layer each, all called like `nn.Conv2d`.

In the formulas W is the full-precision weight that the optimizer moves, (out, in / groups, k, k); n is the number
of weights of one filter, in / groups * k * k; x is the input; sgn(0) = +1; 1{...} is 1 where the condition holds
and 0 elsewhere; o multiplies element by element. What stands under `step` happens after each step of an optimizer
to which `onebit.discrete_backprop` is attached (or by `onebit.constrain_weights`, by hand).
"""

from onebit.rivals.abcnet import AbcConv2d
from onebit.rivals.binaryconnect import BinaryConnectConv2d
from onebit.rivals.bireal import BiRealConv2d
from onebit.rivals.bnn import BnnConv2d
from onebit.rivals.bwn import BwnConv2d
from onebit.rivals.dorefa import DoReFaConv2d
from onebit.rivals.lbcnn import LocalBinaryConv2d
from onebit.rivals.mcdonnell import McDonnellConv2d
from onebit.rivals.mcn import ModulatedConv2d
from onebit.rivals.xnor import XnorConv2d

__all__ = [
    "AbcConv2d",
    "BiRealConv2d",
    "BinaryConnectConv2d",
    "BnnConv2d",
    "BwnConv2d",
    "DoReFaConv2d",
    "LocalBinaryConv2d",
    "McDonnellConv2d",
    "ModulatedConv2d",
    "XnorConv2d",
]
