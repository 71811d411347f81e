"""Small packed nets, made by hand without torch, that have every operation between them."""

import numpy as np

from onebit.graph import Graph, Node
from onebit.modelfile import Counts, Model, Preprocessing
from onebit.operations import default_attributes
from onebit.packing import pack_kernels, pack_signs


class Chain:
    """Nodes, one after another."""

    def __init__(self, *shape):
        self.shape, self.nodes, self.rng = shape, [], np.random.default_rng(0)

    def floats(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def add(self, op, name=None, inputs=None, tensors=None, **attributes):
        before = self.nodes[-1].name if self.nodes else "input"
        name = name or f"{op}{len(self.nodes)}"
        self.nodes.append(
            Node(name, op, tuple(inputs or [before]), default_attributes(op) | attributes, tensors or {})
        )
        return self

    def bconv(self, planes, kernels, J=1, taps=(3, 3), masks=True, **options):
        tensors = {"kernels": pack_kernels(self.floats(kernels, planes, *taps))}
        tensors |= {"masks": pack_signs(self.floats(J, *taps))} if masks else {}
        tensors |= options.pop("more", {})
        return self.add(
            "bconv2d", tensors=tensors, out_channels=kernels * J, kernel_size=list(taps), projections=J, **options
        )

    def model(self, **about):
        return Model(Graph(self.shape, self.nodes), **about)


def wire_models():
    """Four of them."""
    return [_bits(), _floats(), _levels(), _whole_weights()]


def _bits():
    net = Chain(2, 6, 5)
    net.add(
        "conv2d", "stem", tensors={"weight": net.floats(4, 2, 3, 3), "bias": net.floats(4)}, padding=[1, 1, 1, 1]
    )
    net.add(
        "threshold", "bits", tensors={"thresholds": net.floats(4), "at_most": pack_signs(np.array([-1, 1, -1, -1]))}
    )
    net.bconv(4, 3, J=2, method="pcnn", padding=[1, 1, 1, 1])
    net.add("max_pool2d", kernel_size=[2, 2], stride=[2, 2], padding=[0, 1], ceil_mode=True)
    thresholds = np.array([-2, 0, 3, 37, -36, 1], np.int32)
    net.add(
        "threshold", tensors={"thresholds": thresholds, "at_most": pack_signs(np.array([1, -1, -1, 1, -1, -1]))}
    )
    net.add("pad", padding=[1, 0, 0, 1], mode="reflect").add("slice", start=1, stop=5)
    net.bconv(2, 2, taps=(2, 1), groups=2, masks=False, dilation=[2, 1])
    net.add("affine", tensors={"scale": net.floats(2), "shift": net.floats(1)})
    net.add("adaptive_avg_pool2d", output_size=[1, 2]).add("reshape", shape=[4])
    weight = net.rng.integers(-127, 128, (3, 4)).astype(np.int8)
    net.add("linear", "fc", tensors={"weight": weight, "weight_scale": net.floats(3), "bias": net.floats(3)})
    prepared = Preprocessing((0.5, 0.25), (0.2, 0.3), 0.875)
    return net.model(preprocessing=prepared, classes=("a", "b", "ü"), description="small", counts=Counts(1000, 100))


def _floats():
    net = Chain(1, 4, 4)
    for op in ("sigmoid", "hardsigmoid", "hardswish", "silu", "tanh", "elu", "abs", "relu"):
        net.add(op)
    net.add("clamp", "clamped", low=-1.0, high=0.5).add("multiply", "product", inputs=["clamped", "input"])
    net.add("avg_pool2d", kernel_size=[3, 3], stride=[1, 1], padding=[1, 1], count_include_pad=False)
    net.add("add", "sum", inputs=["avg_pool2d10", "product"]).add("sign", "signs")
    net.add("concatenate", inputs=["sum", "clamped"])
    net.bconv(2, 2, J=2, more={"modulation": net.floats(2, 3, 3)}, method="mcn", stride=[2, 1])
    return net.add("prelu", tensors={"slope": net.floats(1)}).add("softmax").model()


def _levels():
    net = Chain(3, 3, 3)
    net.add("quantize", per_unit=12.5, low=-127, high=127).bconv(3, 2)
    net.add("affine", tensors={"scale": net.floats(1)})
    return net.add("conv2d", tensors={"weight": net.floats(2, 2, 1, 1).astype(np.float16)}).model()


def _whole_weights():
    net = Chain(3, 4, 5)

    def whole(*shape):
        return {"weight": net.rng.integers(-64, 65, shape).astype(np.int8)}

    net.add("quantize", per_unit=20.0, low=-100, high=150).add("pad", padding=[1, 0, 2, 1], mode="zeros")
    net.add("conv2d", tensors=whole(4, 3, 2, 3), padding=[1, 1, 0, 0], stride=[2, 1])
    net.add("max_pool2d", kernel_size=[2, 2], stride=[2, 2])
    net.add("affine", tensors={"scale": net.floats(4) / 1024, "shift": net.floats(4)}).add("reshape", shape=[12])
    net.add("quantize", per_unit=30.0, low=0, high=255).add("linear", tensors=whole(3, 12))
    return net.add("affine", tensors={"scale": net.floats(1)}).model()
