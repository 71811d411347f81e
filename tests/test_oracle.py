"""The judge must be independent, and right where a hand can check it."""

from pathlib import Path

import numpy as np

import oracle


def test_oracle_imports_nothing_of_ours():
    source = Path(oracle.__file__).read_text()
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert imports == ["import numpy as np"]


def test_by_hand():
    C = np.array([[[[2.0, -1.0]]]])  # one kernel, one plane, 1 x 2: a = 1.5
    W = np.array([[[1.0, 0.5]], [[-1.0, 3.0]]])
    np.testing.assert_array_equal(oracle.quantize(C, W), np.array([[[[[1.5, -1.5]]], [[[-1.5, -1.5]]]]]))
    delta = np.array([[[[[10.0, 20.0]]], [[[30.0, 40.0]]]]])
    # W o C: [2, -0.5] and [-2, -3]; only -0.5 is within 1, so only delta = 20 passes.
    grad_C, grad_W = oracle.task_gradients(delta, C, W)
    np.testing.assert_array_equal(grad_C, [[[[0.0, 20 * 0.5]]]])
    np.testing.assert_array_equal(grad_W, [[[0.0, 20 * -1.0]], [[0.0, 0.0]]])
    # r for lam = 1, eta = 0.1: moved [3, 1] and [5, 3]; W o moved - C_hat = [1.5, 2] and [-3.5, 10.5]
    loss, grad_C, grad_W = oracle.projection_gradients(delta, C, W, lam=1.0, eta=0.1)
    assert loss == (1.5**2 + 2**2 + 3.5**2 + 10.5**2) / 2
    np.testing.assert_array_equal(grad_C, [[[[1.5 * 1 + -3.5 * -1, 2 * 0.5 + 10.5 * 3]]]])
    np.testing.assert_array_equal(grad_W, [[[1.5 * 3, 2 * 1]], [[-3.5 * 5, 10.5 * 3]]])


def test_nearest_takes_the_upper_of_two():
    assert oracle.nearest(0.5, [0.0, 1.0]) == 1.0
    assert oracle.nearest(0.49, [0.0, 1.0]) == 0.0
