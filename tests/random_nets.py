"""Packed nets of any geometry, for hypothesis."""

from hypothesis import strategies as st

from onebit.packing import pack_signs
from wire_models import Chain


@st.composite
def nets(draw):
    """A float or 1-bit convolution of any geometry, behind floats, bits or levels; a pad and pools.

    Channels 1, 3 and 8 a group; negative directions; J = 1, 2, 4.
    """
    groups, planes = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((1, 3, 8)))
    net = Chain(planes * groups, draw(st.integers(9, 12)), draw(st.integers(9, 12)))
    before = draw(st.sampled_from(("floats", "bits", "levels", "conv2d")))
    if before == "bits":
        at_most = pack_signs(net.floats(planes * groups))
        net.add("threshold", tensors={"thresholds": net.floats(planes * groups), "at_most": at_most})
    elif before == "levels":
        net.add("quantize", per_unit=draw(st.sampled_from((3.5, 40.0))), low=-127, high=127)
    mode = draw(st.sampled_from(("reflect", "replicate", "circular")))
    net.add("pad", padding=[draw(st.integers(0, 2)) for _ in range(4)], mode=mode)
    window = {
        "stride": [draw(st.integers(1, 2)) for _ in range(2)],
        "dilation": [draw(st.integers(1, 2)) for _ in range(2)],
        "padding": [draw(st.integers(0, 2)) for _ in range(4)],
        "groups": groups,
    }
    if before == "conv2d":
        weight = net.floats(8, planes, 3, 2)
        net.add("conv2d", tensors={"weight": weight, "bias": net.floats(8)}, **window)
    else:
        J = draw(st.sampled_from((1, 2, 4)))
        modulation = {"modulation": net.floats(J, 3, 2)} if before == "floats" and draw(st.booleans()) else {}
        net.bconv(planes, 8 // J, J=J, taps=(3, 2), more=modulation, masks=draw(st.booleans()), **window)
    pool = {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, draw(st.integers(0, 1))]}
    dilation = [draw(st.integers(1, 2)) for _ in range(2)]
    net.add("max_pool2d", **pool, ceil_mode=draw(st.booleans()), dilation=dilation)
    net.add("affine", tensors={"scale": net.floats(8), "shift": net.floats(1)})
    pool |= {"ceil_mode": draw(st.booleans()), "count_include_pad": draw(st.booleans())}
    return net.add("avg_pool2d", **pool)
