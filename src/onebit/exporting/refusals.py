"""Why an operation of PyTorch has no counterpart in the file, and what to write in its place."""

from __future__ import annotations

from fnmatch import fnmatchcase

LARGER = (
    "nothing in the file enlarges an image. A net for classes needs nothing of the kind; of another one export the "
    "layers before it as a net of their own, and do the rest in the code around it"
)
PRODUCT = (
    "products of what a net computes (attention, recurrent layers) are not in the file, which is for convolutions"
)
NORM = (
    "statistics of the input itself are not in the file: train with nn.BatchNorm2d, which folds into its neighbours"
)
CHANNELS = (
    "the file does not reorder values: of channels a 1x1 nn.Conv2d with fixed weights of 0 and 1 does the same"
)
AXES = "nets of the file keep (N, channels, height, width)"
CHOICE = (
    "the file compares no values: nn.ReLU, nn.PReLU and torch.clamp choose by size, max(x, y) is x + relu(y - x)"
)
FUNCTION = "of functions of one value the file has x ** 2, abs, sigmoid, tanh, silu, elu and their like"

# The first pattern that fits the name of an operation tells.
INSTEAD = {
    "conv_transpose*": f"transposed convolutions can't be exported: {LARGER}",
    "conv1d": "only 2-d convolutions can be: use nn.Conv2d with a kernel of (1, k), on images of one row",
    "conv3d": "only 2-d convolutions can be: make depth a part of the channels, and use nn.Conv2d",
    "upsample*": LARGER,
    "pixel_shuffle": LARGER,
    "max_unpool*": LARGER,
    "grid_sampler*": "the file has no resampling: do it in the code around the net",
    "pixel_unshuffle": "a nn.Conv2d with stride, and fixed weights of 0 and 1, does the same",
    "im2col": "use nn.Conv2d, which takes such windows itself",
    "max_pool2d_with_indices": "use nn.MaxPool2d without return_indices",
    "adaptive_max_pool*": "use nn.MaxPool2d with the size of the image, or nn.AdaptiveAvgPool2d",
    "amax": "over rows and columns: use nn.MaxPool2d with the size of the image",
    "sum": "over rows and columns: use x.mean((2, 3)), and multiply with their number",
    "gelu": "use nn.SiLU or nn.Hardswish",
    "mish": "use nn.SiLU or nn.Hardswish",
    "softplus": "use nn.ReLU or nn.SiLU",
    "*elu": "use nn.ELU(), nn.LeakyReLU or nn.PReLU",
    "*relu*": "use nn.LeakyReLU or nn.PReLU",
    "glu": "a, b = x.chunk(2, 1), then a * torch.sigmoid(b), does the same",
    "threshold": "use nn.ReLU or torch.clamp",
    "log_softmax": "leave it out, the largest output stays the largest; or use nn.Softmax(dim=1)",
    "linalg*": NORM,
    "*_norm": NORM,
    "std*": NORM,
    "var*": NORM,
    "*shuffle": CHANNELS,
    "roll": CHANNELS,
    "flip": CHANNELS,
    "index*": CHANNELS,
    "gather": CHANNELS,
    "*transpose": AXES,
    "t": AXES,
    "permute": AXES,
    "movedim": AXES,
    "stack": "use torch.cat(..., dim=1)",
    "sign": "signs are a part of 1-bit layers: onebit.binarize(model, activation_bits=1) makes such",
    "gt": CHOICE,
    "ge": CHOICE,
    "lt": CHOICE,
    "le": CHOICE,
    "eq": CHOICE,
    "where": CHOICE,
    "max*": CHOICE,
    "min*": CHOICE,
    "*mm": PRODUCT,
    "matmul": PRODUCT,
    "einsum": PRODUCT,
    "bilinear": PRODUCT,
    "*attention*": PRODUCT,
    "lstm*": PRODUCT,
    "gru*": PRODUCT,
    "rnn*": PRODUCT,
    "embedding*": "nets of the file begin with an image",
    "exp": FUNCTION,
    "log*": FUNCTION,
    "sqrt": FUNCTION,
    "rsqrt": FUNCTION,
    "sin": FUNCTION,
    "cos": FUNCTION,
    "erf": FUNCTION,
    "soft*": FUNCTION,
    "hard*": FUNCTION,
}


def refusal(operation: str, *, is_random: bool = False) -> str:
    """What to say of an operation, such as 'aten.gelu', that can't be exported."""
    name = operation.rpartition(".")[2].strip("_")
    advice = next((advice for pattern, advice in INSTEAD.items() if fnmatchcase(name, pattern)), "")
    if is_random and not advice:
        return "it is random, and a net of the file makes the same of the same image always"
    return f"it is not supported: {advice}" if advice else "it is not supported"
