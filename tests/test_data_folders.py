"""Folders of data as people have them: files that are no images, endings, names that are not there."""

import pickle

import numpy as np
import pytest
from PIL import Image

from data_files import cifar10_binary, cifar10_python, cifar100, image_folder
from onebit.data.catalog import load_data
from onebit.errors import UserError
from onebit.imagefiles import Crop, read_pixels


def pixels_of(split, row):
    ((images, _),) = split.batches([np.array([row])])
    return images[0].numpy()


@pytest.mark.parametrize("share", [None, 1.0, 0.5])
def test_the_same_part_is_taken_of_images_to_train_and_to_test(tmp_path, share):
    """7/8 of the largest square, if nothing else is said."""
    image_folder(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    for part in ("train", "val"):
        Image.fromarray(noise).save(tmp_path / part / "n00000000" / "a.png")
    data = load_data("imagefolder", str(tmp_path), image_size=16, **({} if share is None else {"share": share}))
    for split in (data.train, data.test):
        assert split.listing.paths[0].endswith("a.png")
        assert np.array_equal(pixels_of(split, 0), read_pixels(noise, (3, 16, 16), share or 0.875))


def test_what_is_no_image_is_left_alone(tmp_path):
    """Files of the system, hidden ones and texts; endings may be in capitals."""
    image_folder(tmp_path, classes=1, train=1)
    folder = tmp_path / "train" / "n00000000"
    for name in ("._train_0.JPEG", ".hidden.png", "Thumbs.db", "notes.txt", "jpg"):
        (folder / name).write_bytes(b"no image")
    kinds = ("a.JPG", "b.jpeg", "c.PNG", "d.webp", "e.bmp", "f.ppm", "g.gif", "h.tif", "i.TIFF")
    for name in kinds:
        Image.new("RGB", (8, 8), (200, 0, 0)).save(folder / name)
    data = load_data("imagefolder", str(tmp_path), image_size=8)
    names = [path.rsplit("/", 1)[1] for path in data.train.listing.paths]
    assert names == [*kinds, "train_0.JPEG"]
    for row in range(len(kinds)):
        assert abs(pixels_of(data.train, row).astype(int)[0] - 200).max() < 4


@pytest.mark.parametrize(("shape", "size"), [((9, 7, 3), (9, 7)), ((9, 7), (9, 7)), ((9, 7, 3), (5, 4))])
def test_an_array_is_mirrored_whether_it_is_resized_or_not(shape, size):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    plain = read_pixels(pixels, (3, *size))
    assert np.array_equal(read_pixels(pixels, (3, *size), crop=Crop(flip=True)), plain[:, :, ::-1])


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_classes_without_names_are_numbers(tmp_path, layout):
    """Where their file is not there, or names others."""
    folder = tmp_path / {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[layout]
    {"python": cifar10_python, "binary": cifar10_binary}[layout](tmp_path)
    file = folder / {"python": "batches.meta", "binary": "batches.meta.txt"}[layout]
    for content in ({"label_names": ["a", "b"]}, None):
        file.unlink(missing_ok=True)
        if content is not None:
            named = pickle.dumps(content, 2) if layout == "python" else "\n".join(content["label_names"]).encode()
            file.write_bytes(named)
        assert load_data("cifar10", str(tmp_path)).class_names == list("0123456789")


def test_a_label_behind_the_last_class(tmp_path):
    cifar10_binary(tmp_path)
    (file,) = tmp_path.rglob("data_batch_2.bin")
    content = bytearray(file.read_bytes())
    for label, is_class in ((9, True), (10, False)):
        content[0] = label
        file.write_bytes(content)
        if is_class:
            assert load_data("cifar10", str(tmp_path)).train.labels.max() == 9
        else:
            with pytest.raises(UserError, match=r"data_batch_2.bin: labels from \d to 10, not 0 to 9"):
                load_data("cifar10", str(tmp_path))


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_cifar100_has_the_names_of_its_fine_labels(tmp_path, layout):
    """The published files name the 20 coarse ones, too."""
    cifar100(tmp_path, layout)
    coarse = [f"coarse_{n}" for n in range(100)]
    if layout == "python":
        (file,) = tmp_path.rglob("meta")
        file.write_bytes(pickle.dumps(pickle.loads(file.read_bytes()) | {"coarse_label_names": coarse}, 4))
    else:
        (file,) = tmp_path.rglob("fine_label_names.txt")
        file.with_name("coarse_label_names.txt").write_text("\n".join(coarse))
    assert load_data("cifar100", str(tmp_path)).class_names == [f"class_{n}" for n in range(100)]
