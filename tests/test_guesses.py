"""What `onebit run` says of a net's outputs."""

import numpy as np
import pytest

from onebit.classifying import guesses
from onebit.reference import Reference
from wire_models import Chain

LOGITS = np.array([[0.5, 2.0, -1.0]], np.float32).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("ends_in_softmax", [True, False])
def test_probabilities_are_made_once(ends_in_softmax):
    net = Chain(3, 1, 1).add("reshape", shape=[3])
    net = net.add("softmax") if ends_in_softmax else net
    (found,) = guesses(Reference(net.model()), LOGITS, 2)
    powers = np.exp(LOGITS.ravel().astype(np.float64))
    assert [guess.number for guess in found] == [1, 0]
    assert [guess.label for guess in found] == ["1", "0"]
    assert [guess.probability for guess in found] == pytest.approx((powers / powers.sum())[[1, 0]], rel=1e-6)
