"""Files for other programs, run by them."""

import numpy as np
import pytest

from onebit.exchange.converting import content_of
from onebit.graph import INPUT
from onebit.peers.runner import outputs_of
from onebit.reference import Reference

# Kind, whether it is packed, and what runs it.
FORMS = {
    "onnx": ("onnx", False, "onnxruntime"),
    "packed onnx": ("onnx", True, "onnxruntime"),
    "qonnx": ("qonnx", False, "qonnx"),
}


def needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'onebit[onnx,qonnx]'")


def run_form(form, model, x):
    """What the program of a form makes of images."""
    kind, packed, program = FORMS[form]
    content = content_of(model, kind, packed=packed)
    if program == "qonnx":
        from onebit.peers import qonnx_net

        return outputs_of(qonnx_net.session(content), x, 1)
    from onebit.peers import onnxruntime_net

    return onnxruntime_net.session(content).run(x)[0]


def margins(model, x):
    """For each image: how near to its threshold is any float that becomes a bit? Sums are exact and don't count."""
    found = np.full(len(x), np.inf)
    values = {INPUT: x}
    for node, made in Reference(model).values(x):
        values[node.name] = made
        before = values[node.inputs[0]]
        if node.op == "sign":
            distance = np.abs(before)
        elif node.op == "threshold" and before.dtype == np.float32:
            distance = np.abs(before - node.tensors["thresholds"].reshape(-1, *[1] * (before.ndim - 2)))
        else:
            continue
        found = np.minimum(found, distance.reshape(len(x), -1).min(axis=1))
    return found
