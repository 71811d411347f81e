"""What a model file may just say, and what it may not any more: to the last number, name and key."""

import numpy as np
import pytest

import onebit
from onebit.modelfile import (
    Model,
    Preprocessing,
    check_preprocessing,
    pack_model,
    read_model,
    unpack_model,
    write_model,
)
from test_modelfile import DESCRIBED, TENSORS, put_together
from wire_models import Chain


def a_net(**about):
    return Chain(2, 6, 5).add("relu").model(**about)


def test_the_least_deviation_and_the_largest_crop():
    check_preprocessing([0], [1e-6], 1)
    check_preprocessing([-999_999.5], [999_999.5], 1e-9)
    for mean, std, crop, words in (
        ([0], [0.99e-6], 1, "std must be at least 1e-06"),
        ([0], [1], 1.001, "crop must be more than 0"),
        ([-1e6], [1], 1, "below a million"),
        ([0], [1e6], 1, "below a million"),
    ):
        with pytest.raises(onebit.ModelFileError, match=words):
            check_preprocessing(mean, std, crop)


@pytest.mark.parametrize("key", ["mean", "std"])
def test_true_is_no_number(key):
    numbers = {"mean": [0, 0], "std": [1, 1], "crop": 1} | {key: [1, True]}
    with pytest.raises(onebit.ModelFileError, match="mean, std and crop must be numbers"):
        unpack_model(put_together(DESCRIBED | {"preprocessing": numbers}, TENSORS))


@pytest.mark.parametrize(("means", "stds"), [(2, 1), (2, 3), (1, 2), (3, 2), (3, 3)])
def test_a_mean_and_a_std_for_each_channel(means, stds):
    with pytest.raises(ValueError, match="a mean and a std for each of 2 channels"):
        a_net(preprocessing=Preprocessing((0.5,) * means, (1.0,) * stds))


def test_who_wrote_a_file_stays_with_it():
    """Whoever reads it and writes it again; what it says of the net is another text."""
    model = Model(a_net().graph, description="a net", producer="another program 7.1")
    found = unpack_model(pack_model(unpack_model(pack_model(model))))
    assert (found.description, found.producer) == ("a net", "another program 7.1")
    assert a_net().producer == f"onebit {onebit.__version__}"


def test_of_several_wrong_names_the_first_is_said():
    """The same line at every reading."""
    more = {name: np.ones(1, np.float32) for name in ("more.b", "more.a", "more.c")}
    with pytest.raises(onebit.ModelFileError, match=r"no node uses the tensor 'more\.a'"):
        unpack_model(put_together(DESCRIBED, TENSORS | more))
    with pytest.raises(onebit.ModelFileError, match="'more_a' is unknown"):
        unpack_model(put_together(DESCRIBED | {"more_b": 1, "more_a": 1, "more_c": 1}, TENSORS))


def test_names_of_1024_characters():
    assert unpack_model(pack_model(a_net(description="x" * 1024))).description == "x" * 1024
    with pytest.raises(
        onebit.ModelFileError, match="description must be text of at most 1024 printable characters"
    ):
        unpack_model(pack_model(a_net(description="x" * 1025)))


def test_a_file_of_exactly_the_largest_size(tmp_path, monkeypatch):
    path = tmp_path / "a.onebit"
    size = write_model(a_net(), path)
    monkeypatch.setattr("onebit.modelfile.MAX_FILE", size)
    monkeypatch.setattr("onebit.container.MAX_FILE", size)
    assert read_model(path).graph.input_shape == (2, 6, 5)
