"""Bits on disk, to the byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.packing import has_stray_bits, pack_kernels, pack_signs, packed_size, unpack_kernels, unpack_signs


def test_the_first_sign_is_in_the_lowest_bit_and_1_means_plus():
    assert pack_signs(np.array([1, -1, -1, -1, -1, -1, -1, -1])).tolist() == [0b00000001]
    assert pack_signs(np.array([-1, -1, -1, -1, -1, -1, -1, 1, 1, -1])).tolist() == [0b10000000, 0b00000001]
    assert pack_signs(np.array([-1] * 9)).tolist() == [0, 0], "what fills the last byte is 0"


def test_a_zero_is_no_plus():
    """Masks and conditions are packed as well: 0 and False are 0."""
    assert pack_signs(np.array([0, 1, 0, 0, 1], np.int8)).tolist() == [0b10010]
    assert pack_signs(np.array([False, True])).tolist() == [0b10]
    assert pack_signs(np.array([], np.int8)).tolist() == []


def test_kernels_go_by_kernel_tap_and_plane():
    kernels = -np.ones((2, 3, 1, 2), np.int8)
    kernels[0, 1, 0, 0] = 1  # tap 0, plane 1: bit 1
    kernels[0, 2, 0, 1] = 1  # tap 1, plane 2: bit 3 + 2
    kernels[1, 0, 0, 0] = 1  # the second kernel begins at bit 6
    assert pack_kernels(kernels).tolist() == [0b01100010, 0]


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_round_trip(kernels, planes, height, width, seed):
    signs = np.random.default_rng(seed).choice([-1, 1], (kernels, planes, height, width))
    packed = pack_kernels(signs)
    assert packed.dtype == np.uint8
    assert len(packed) == packed_size(signs.size)
    assert not has_stray_bits(packed, signs.size)
    assert np.array_equal(unpack_kernels(packed, signs.shape), signs)
    assert np.array_equal(unpack_signs(pack_signs(signs), signs.shape), signs)


@pytest.mark.parametrize(
    ("last", "count", "stray"), [(0b100, 2, True), (0b11, 2, False), (255, 8, False), (0, 1, False)]
)
def test_stray_bits(last, count, stray):
    assert has_stray_bits(np.array([last], np.uint8), count) is stray
