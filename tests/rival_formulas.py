"""The rival methods as NumPy, written from their formulas alone; imports nothing from onebit.

A weight formula gives the quantised weight and what dL/d(quantised weight) is multiplied with to give dL/dW;
an input formula the same of the input. Filters and numbers are taken one by one.
"""

import numpy as np


def sgn(x):
    return np.where(np.asarray(x) >= 0, 1.0, -1.0)


def one_by_one(function, array):
    return np.array([function(float(number)) for number in np.ravel(array)]).reshape(np.shape(array))


def signs(W):
    return sgn(W), np.ones_like(W)


def scaled_by_filter(W, slope):
    """alpha * sgn(W), alpha = mean |W| of the filter; slope(w, alpha, n) for each weight."""
    value, slopes = np.empty_like(W), np.empty_like(W)
    for o, filter_ in enumerate(W):
        n = filter_.size
        alpha = sum(abs(float(w)) for w in filter_.ravel()) / n
        value[o] = one_by_one(lambda w, a=alpha: a if w >= 0 else -a, filter_)
        slopes[o] = one_by_one(lambda w, a=alpha, n=n: slope(w, a, n), filter_)
    return value, slopes


def bwn(W):
    return scaled_by_filter(W, lambda w, alpha, n: (alpha if abs(w) < 1 else 0) + 1 / n)


def bireal(W):
    return scaled_by_filter(W, lambda w, alpha, n: alpha if abs(w) < 1 else 0)


def bireal_of_the_programs(W):
    """The gradient as the authors' programs have it, without alpha."""
    return scaled_by_filter(W, lambda w, alpha, n: abs(w) <= 1)


def mcdonnell(W):
    return np.sqrt(2 / W[0].size) * sgn(W), np.ones_like(W)


def dorefa(W):
    mean = sum(abs(float(w)) for w in W.ravel()) / W.size
    return one_by_one(lambda w: mean if w >= 0 else -mean, W), np.ones_like(W)


def evenly(count):
    return [0.0] if count == 1 else [-1 + 2 * m / (count - 1) for m in range(count)]


def abc(W, weight_bases=1):
    mean, std = np.mean(W), np.std(W)
    bases = np.stack([sgn(W - mean + u * std).ravel() for u in evenly(weight_bases)], axis=1)
    alpha, *_ = np.linalg.lstsq(bases, W.ravel(), rcond=1e-10)
    return (bases @ alpha).reshape(W.shape), np.full_like(W, alpha.sum())


WEIGHTS = {
    "binaryconnect": signs,
    "bnn": signs,
    "bwn": bwn,
    "xnor": bwn,
    "mcdonnell": mcdonnell,
    "dorefa": dorefa,
    "abc": abc,
    "bireal": bireal,
}


def sign_input(x, bits):
    return (sgn(x), one_by_one(lambda v: abs(v) <= 1, x)) if bits == 1 else (x, np.ones_like(x))


def bireal_input(x, bits):
    if bits == 32:
        return x, np.ones_like(x)
    return sgn(x), one_by_one(lambda v: 2 - 2 * abs(v) if abs(v) < 1 else 0, x)


def dorefa_input(x, bits):
    if bits == 32:
        return x, np.ones_like(x)
    n = 2**bits - 1
    return np.round(n * np.clip(x, 0, 1)) / n, one_by_one(lambda v: 0 <= v <= 1, x)


INPUTS = {
    "binaryconnect": sign_input,
    "bnn": sign_input,
    "bwn": sign_input,
    "xnor": sign_input,
    "mcdonnell": sign_input,
    "dorefa": dorefa_input,
    "bireal": bireal_input,
}


def abc_input(x, v, beta, g):
    """x_q, dL/dx, dL/dv, dL/dbeta for dL/dx_q = g."""
    value, grad_x = np.zeros_like(x), np.zeros_like(x)
    grad_v, grad_beta = np.zeros_like(v), np.zeros_like(beta)
    for n in range(len(v)):
        h = np.clip(x + v[n], 0, 1)
        A = sgn(h - 0.5)
        inside = (x + v[n] >= 0) & (x + v[n] <= 1)
        value += beta[n] * A
        grad_x += beta[n] * g * inside
        grad_v[n] = np.sum(beta[n] * g * inside)
        grad_beta[n] = np.sum(g * A)
    return value, grad_x, grad_v, grad_beta


def clipped(W):
    return one_by_one(lambda w: max(-1.0, min(1.0, w)), W)


def centred_and_clipped(W):
    if W.shape[1] == 1:
        return clipped(W)
    centred = np.empty_like(W)
    for o, y, x in np.ndindex(W.shape[0], *W.shape[2:]):
        planes = [float(w) for w in W[o, :, y, x]]
        centred[o, :, y, x] = np.array(planes) - sum(planes) / len(planes)
    return clipped(centred)


STEPS = {"binaryconnect": clipped, "bnn": clipped, "bwn": centred_and_clipped, "xnor": centred_and_clipped}


def mcn(C, M, b, g):
    """Q, dL_S/dC, dL_S/dM for dL_S/dQ = g (rows o*K + j); b is the size of a bit, which C's gradient is without."""
    K, C_hat = len(M), b * sgn(C)
    Q = np.empty((len(C) * K, *C.shape[1:]))
    grad_C, grad_M = np.zeros_like(C), np.zeros_like(M)
    for o, j, i in np.ndindex(len(C), K, C.shape[1]):
        row = o * K + j
        Q[row, i] = C_hat[o, i] * M[j]
        grad_C[o, i] += g[row, i] * M[j]
        grad_M[j] += g[row, i] * C_hat[o, i]
    return Q, grad_C, grad_M


def mcn_loss(C, M, b, theta):
    """L_M and its gradients."""
    loss, grad_C, grad_M, C_hat = 0.0, np.zeros_like(C), np.zeros_like(M), b * sgn(C)
    for o, j, i in np.ndindex(len(C), len(M), C.shape[1]):
        r = C[o, i] - C_hat[o, i] * M[j]
        loss += theta / 2 * np.sum(r**2)
        grad_C[o, i] += theta * r
        grad_M[j] -= theta * r * C_hat[o, i]
    return loss, grad_C, grad_M


def mcn_step(M):
    """What a step makes of M: positive, and neither small nor large."""
    return one_by_one(lambda m: min(max(abs(m), 0.1), 10.0), M)


def scale_map(x, kernel, stride, padding, groups, out_channels):
    """XNOR-Net's K for every output channel: the mean of |x| over the group's channels and the window."""
    padded = np.pad(np.abs(x), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height = (padded.shape[2] - kernel) // stride + 1
    width = (padded.shape[3] - kernel) // stride + 1
    K = np.empty((len(x), out_channels, height, width))
    size = x.shape[1] // groups
    for n, o, y, z in np.ndindex(K.shape):
        group = o // (out_channels // groups)
        rows, columns = slice(y * stride, y * stride + kernel), slice(z * stride, z * stride + kernel)
        K[n, o, y, z] = padded[n, group * size : (group + 1) * size, rows, columns].mean()
    return K
