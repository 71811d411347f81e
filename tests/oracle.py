"""The paper's equations as plain loops over NumPy arrays, written from docs/paper.md and the paper alone.

Imports nothing from onebit: this is what onebit is held against. Every sum is a loop over single numbers.
"""

import numpy as np


def sgn(x):
    return 1.0 if x >= 0 else -1.0


def nearest(x, omega):
    """Eq. 2; halfway the upper."""
    best = omega[0]
    for value in omega[1:]:
        if abs(x - value) <= abs(x - best):
            best = value
    return best


def omega_of(C, o, levels, scale):
    """Eq. 1 with Eq. 23, read as the mean of absolute values."""
    if isinstance(levels, tuple):
        return list(levels)
    values = [abs(v) for v in (C if scale == "layer" else C[o]).ravel()]
    a = sum(values) / len(values)
    return [a * (-1 + 2 * u / (levels - 1)) for u in range(levels)]


def quantize(C, W, levels=2, scale="layer", forward_w="elementwise"):
    """Eq. 9: C_hat[o][j][i][y][x]."""
    O, I, kh, kw = C.shape  # noqa: E741
    J = W.shape[0]
    C_hat = np.empty((O, J, I, kh, kw))
    for o, j, i, y, x in np.ndindex(C_hat.shape):
        w = W[j, y, x] if forward_w == "elementwise" else sum(abs(v) for v in W[j].ravel()) / (kh * kw)
        omega = omega_of(C, o, levels, scale)
        if levels == 2:  # P_Omega, with ties at 0 decided by sgn(0) = +1 of each factor
            C_hat[o, j, i, y, x] = omega[1] * sgn(w) * sgn(C[o, i, y, x])
        else:
            C_hat[o, j, i, y, x] = nearest(w * C[o, i, y, x], omega)
    return C_hat


def task_gradients(delta, C, W, forward_w="elementwise"):
    """Eq. 17 and 21."""
    grad_C, grad_W = np.zeros_like(C), np.zeros_like(W)
    for o, j, i, y, x in np.ndindex(delta.shape):
        mean = forward_w == "mean"
        w = abs(W[j, y, x]) if mean else W[j, y, x]
        c = C[o, i, y, x]
        if abs(w * c) <= 1:
            grad_C[o, i, y, x] += delta[o, j, i, y, x] * w
            grad_W[j, y, x] += delta[o, j, i, y, x] * c * (sgn(W[j, y, x]) if mean else 1)
    return grad_C, grad_W


def projection_gradients(delta, C, W, lam, eta, levels=2, scale="layer", forward_w="elementwise"):
    """Eq. 8, 18 and 22."""
    C_hat = quantize(C, W, levels, scale, forward_w)
    loss, grad_C, grad_W = 0.0, np.zeros_like(C), np.zeros_like(W)
    for o, j, i, y, x in np.ndindex(delta.shape):
        mean = forward_w == "mean"
        w = abs(W[j, y, x]) if mean else W[j, y, x]
        moved = C[o, i, y, x] + eta * delta[o, j, i, y, x]
        r = w * moved - C_hat[o, j, i, y, x]
        loss += lam / 2 * r * r
        grad_C[o, i, y, x] += lam * r * w
        grad_W[j, y, x] += lam * r * moved * (sgn(W[j, y, x]) if mean else 1)
    return loss, grad_C, grad_W


def conv2d(x, D, stride=1, padding=0, groups=1):
    """Eq. 12: x (N, I, H, W), D (O*J, I/groups, k, k), zero padding."""
    N, _, H, Wd = x.shape
    M, I, kh, kw = D.shape  # noqa: E741
    padded = np.zeros((N, x.shape[1], H + 2 * padding, Wd + 2 * padding))
    padded[:, :, padding : padding + H, padding : padding + Wd] = x
    out = np.zeros((N, M, (H + 2 * padding - kh) // stride + 1, (Wd + 2 * padding - kw) // stride + 1))
    for n, m, y, z in np.ndindex(out.shape):
        first = (m // (M // groups)) * I
        for i, u, v in np.ndindex(I, kh, kw):
            out[n, m, y, z] += padded[n, first + i, y * stride + u, z * stride + v] * D[m, i, u, v]
    return out


def conv2d_weight_gradient(x, grad_out, D_shape, stride=1, padding=0, groups=1):
    """dL/dD for y = conv2d(x, D) and dL/dy = grad_out."""
    N, _, H, Wd = x.shape
    M, I, kh, kw = D_shape  # noqa: E741
    padded = np.zeros((N, x.shape[1], H + 2 * padding, Wd + 2 * padding))
    padded[:, :, padding : padding + H, padding : padding + Wd] = x
    grad = np.zeros(D_shape)
    for n, m, y, z in np.ndindex(grad_out.shape):
        first = (m // (M // groups)) * I
        for i, u, v in np.ndindex(I, kh, kw):
            grad[m, i, u, v] += grad_out[n, m, y, z] * padded[n, first + i, y * stride + u, z * stride + v]
    return grad
