"""Data sets from real files in every layout, and from hostile ones."""

import hashlib
import http.server
import os
import pickle
import tarfile
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import CIFAR10_NAMES, cifar10_binary, cifar10_python, cifar100, image_folder
from onebit.data import cifar
from onebit.data.catalog import load_data
from onebit.data.decoding import Item, decode
from onebit.data.download import Archive, fetch
from onebit.data.pickles import read_pickle
from onebit.data.splits import Pass
from onebit.errors import UserError
from onebit.imagefiles import Crop
from onebit.training.evaluation import Feed


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_cifar10_python_layout_whatever_the_pickles_protocol(tmp_path, protocol):
    folder, parts = cifar10_python(tmp_path, protocol=protocol)
    for where in (tmp_path, folder):  # the folder, or the one that holds it
        data = load_data("cifar10", str(where))
        images = np.concatenate([images for images, _ in parts[:5]])
        assert np.array_equal(data.train.images, images)
        assert np.array_equal(data.train.labels, np.concatenate([labels for _, labels in parts[:5]]))
        assert np.array_equal(data.test.images, parts[5][0])
        assert data.class_names == CIFAR10_NAMES


def test_cifar10_binary_layout_is_the_same_data(tmp_path):
    cifar10_python(tmp_path / "a")
    cifar10_binary(tmp_path / "b")
    python, binary = load_data("cifar10", str(tmp_path / "a")), load_data("cifar10", str(tmp_path / "b"))
    for one, other in ((python.train, binary.train), (python.test, binary.test)):
        assert np.array_equal(one.images, other.images)
        assert np.array_equal(one.labels, other.labels)
    assert python.class_names == binary.class_names


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_cifar100_takes_the_fine_labels(tmp_path, layout):
    parts = cifar100(tmp_path, layout)
    data = load_data("cifar100", str(tmp_path))
    for split, name in ((data.train, "train"), (data.test, "test")):
        assert np.array_equal(split.images, parts[name][0])
        assert np.array_equal(split.labels, parts[name][1])
    assert data.class_names[42] == "class_42"


def test_data_is_found_through_the_environment(tmp_path, monkeypatch):
    cifar10_binary(tmp_path)
    monkeypatch.setenv("ONEBIT_DATA", str(tmp_path))
    assert len(load_data("cifar10").train.labels) == 100
    other = tmp_path / "other"
    cifar10_binary(other, count=7)
    assert len(load_data("cifar10", str(other)).test.labels) == 7, "what is said counts before it"
    monkeypatch.delenv("ONEBIT_DATA")
    with pytest.raises(UserError, match="--data-dir DIR, or \\$ONEBIT_DATA"):
        load_data("cifar10")


class Hostile:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec, pickle.loads, np.load])
def test_a_hostile_pickle_runs_nothing(tmp_path, protocol, function):
    folder, _ = cifar10_python(tmp_path)
    trap = tmp_path / "trap"
    words = {os.system: f"touch {trap}", np.load: str(trap)}.get(function, f"open({str(trap)!r}, 'w')")
    attack = Hostile((function, (words.encode() if function is pickle.loads else words,)))
    content = pickle.dumps({"data": attack, "labels": [0]}, protocol)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(UserError, match="data_batch_3: refused, for its pickle names"):
        load_data("cifar10", str(tmp_path))
    assert not trap.exists()
    if function in {os.system, exec, eval}:  # the trap is a real one: the stock reader falls into it
        pickle.loads(content)
        assert trap.exists()


def test_a_hostile_array_is_refused_too(tmp_path):
    """Names that are admitted can't be used for more than they are for."""
    file = tmp_path / "batch"
    for content in (
        {"data": np.array([print], dtype=object)},
        {"data": np.array([1.5])},
        {"data": np.array(["x"])},
        {"data": np.zeros(2, np.dtype([("a", "u1")]))},
    ):
        file.write_bytes(pickle.dumps(content, 2))
        with pytest.raises(UserError):
            read_pickle(file)
    # an array that claims more than its bytes
    whole = pickle.dumps({"data": np.zeros(100, np.uint8)}, 2)
    file.write_bytes(whole.replace(b"Kd\x85", b"Ke\x85"))
    with pytest.raises(UserError, match="does not fit"):
        read_pickle(file)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_cut_off_batch_is_named(tmp_path, cut):
    folder, _ = cifar10_python(tmp_path)
    file = folder / "data_batch_2"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(UserError, match="data_batch_2"):
        load_data("cifar10", str(tmp_path))


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ({"labels": [0]}, "no 'data'"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "no 'labels'"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [0]}, r"not uint8 \(1, 3072\)"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, r"not uint8 \(1, 3072\)"),
        ({"data": np.zeros((1, 3072), np.int64), "labels": [0]}, "int64"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "labels from 10 to 10"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "labels from -1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "not a list of numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [2**70]}, "labels from"),
        ({"data": [[1], [2, 3]], "labels": [0]}, "'data' is no array"),
        ([1, 2], "it holds a list"),
    ],
)
def test_a_wrong_batch_says_what_is_wrong(tmp_path, batch, what):
    folder, _ = cifar10_python(tmp_path)
    (folder / "data_batch_5").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(UserError, match=f"data_batch_5.*{what}"):
        load_data("cifar10", str(tmp_path))


def test_a_binary_file_of_the_wrong_length(tmp_path):
    folder = cifar10_binary(tmp_path)
    with (folder / "test_batch.bin").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(UserError, match="test_batch.bin.*not a whole number of images"):
        load_data("cifar10", str(tmp_path))


def test_a_missing_batch_is_named(tmp_path):
    folder, _ = cifar10_python(tmp_path)
    (folder / "data_batch_4").unlink()
    with pytest.raises(UserError, match="data_batch_4: not there"):
        load_data("cifar10", str(tmp_path))


@pytest.fixture
def server(tmp_path):
    """A real web server over a folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def packed(folder, source, extra=()):
    file = folder / "cifar-10-python.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(source, source.name)
        for name, path in extra:
            archive.add(path, name)
    return file


def test_cifar_is_downloaded_checked_and_unpacked(tmp_path, server, monkeypatch, capfd):
    folder, address = server
    source, parts = cifar10_python(tmp_path / "source")
    file = packed(folder, source)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    archive = Archive(f"{address}/{file.name}", digest, "cifar-10-batches-py")
    monkeypatch.setitem(cifar.CIFARS, "cifar10", cifar.CIFARS["cifar10"]._replace(archive=archive))
    home = tmp_path / "new" / "home"
    data = load_data("cifar10", str(home))
    assert np.array_equal(data.test.images, parts[5][0])
    assert "fetching cifar-10-python.tar.gz" in capfd.readouterr().err
    file.unlink()  # now the server has nothing: what is there is taken
    assert len(load_data("cifar10", str(home)).train.labels) == 100
    assert sorted(path.name for path in home.iterdir()) == ["cifar-10-batches-py", file.name]


def test_a_download_with_another_checksum_is_not_kept(tmp_path, server):
    folder, address = server
    file = packed(folder, cifar10_python(tmp_path / "source")[0])
    with pytest.raises(UserError, match="not the published 000000"):
        fetch(Archive(f"{address}/{file.name}", "0" * 64, "cifar-10-batches-py"), tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_an_archive_can_not_write_elsewhere(tmp_path, server):
    folder, _ = server
    secret = tmp_path / "secret"
    secret.write_text("x")
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    extra = [
        ("cifar-10-batches-py/../../escaped", secret),
        ("../escaped", secret),
        ("/tmp/escaped-absolute", secret),
        ("cifar-10-batches-py/link", link),
        ("cifar-10-batches-py/deep/er", secret),
    ]
    file = packed(folder, cifar10_python(tmp_path / "source")[0], extra)
    home = tmp_path / "home"
    home.mkdir()
    file.rename(home / file.name)  # the user put it there
    digest = hashlib.sha256((home / file.name).read_bytes()).hexdigest()
    found = fetch(Archive("http://127.0.0.1:1/cifar-10-python.tar.gz", digest, "cifar-10-batches-py"), home)
    assert {path.name for path in found.iterdir()} == {
        "batches.meta",
        "test_batch",
        *(f"data_batch_{n}" for n in range(1, 6)),
    }
    assert not list(tmp_path.rglob("escaped"))


def test_without_a_network_the_error_says_what_goes_where(tmp_path):
    archive = Archive("http://127.0.0.1:1/cifar-10-python.tar.gz", "0" * 64, "cifar-10-batches-py")
    mistyped = tmp_path / "a" / "b"
    with pytest.raises(UserError) as caught:
        fetch(archive, mistyped)
    message = str(caught.value)
    for part in (archive.url, "put that file, or the folder", str(mistyped), archive.folder):
        assert part in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir()), "a folder that was not there is not left behind"


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_an_archive_that_is_not_whole(tmp_path, server, kept, published):
    """By its checksum; and if that should be of a file that is no archive, by unpacking it."""
    file = packed(server[0], cifar10_python(tmp_path / "source")[0])
    home = tmp_path / "home"
    home.mkdir()
    content = file.read_bytes()[:kept]
    (home / file.name).write_bytes(content)
    digest = "0" * 64 if published else hashlib.sha256(content).hexdigest()
    with pytest.raises(UserError, match="not (a|the) whole"):
        fetch(Archive("http://127.0.0.1:1/cifar-10-python.tar.gz", digest, "cifar-10-batches-py"), home)
    assert [path.name for path in home.iterdir()] == [file.name]


def test_a_data_dir_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="file"):
            load_data("cifar10", str(where))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_images(tmp_path, workers):
    image_folder(tmp_path)
    (tmp_path / "train" / "n00000001" / "notes.txt").write_text("no image")
    data = load_data("imagenet", str(tmp_path), image_size=16, workers=workers)
    assert data.class_names == ["n00000000", "n00000001", "n00000002"]
    assert data.train.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    rows = [np.array([0, 8, 16]), np.array([23, 1])]
    for batch, chosen in zip(data.train.batches(rows), rows, strict=True):
        assert batch.images.shape == (len(chosen), 3, 16, 16)
        assert batch.labels.tolist() == data.train.labels[chosen].tolist()
        assert batch.images.float().mean(dim=(2, 3)).argmax(dim=1).tolist() == batch.labels.tolist()


def test_tiny_imagenets_own_folders_are_found(tmp_path):
    image_folder(tmp_path, classes=1, train=2)
    inner = tmp_path / "train" / "n00000000" / "images"
    inner.mkdir()
    Image.new("RGB", (8, 8)).save(inner / "deeper.png")
    assert len(load_data("imagefolder", str(tmp_path)).train.labels) == 3


@pytest.mark.parametrize(
    ("remove", "what"),
    [
        ("train", "has no folder 'train'"),
        ("val", "has no folder 'val'"),
        ("val/n00000001", ""),
        (".", "no such folder"),
    ],
)
def test_a_folder_that_is_incomplete(tmp_path, remove, what):
    root = image_folder(tmp_path / "images")
    (root / remove).rename(tmp_path / "elsewhere")
    if what:
        with pytest.raises(UserError, match=what):
            load_data("imagefolder", str(root))
    else:  # a class without test images is no mistake
        assert set(load_data("imagefolder", str(root)).test.labels) == {0, 2}


def test_images_without_classes_beside_val_are_left_alone(tmp_path):
    """ImageNet's folder 'test' has no labels; where there is no 'val', 'test' is what to test on."""
    root = image_folder(tmp_path / "images", test=2)
    (root / "test" / "images").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "test" / "images" / "test_0.JPEG")
    assert len(load_data("imagefolder", str(root)).test.labels) == 6
    (root / "test").rename(tmp_path / "elsewhere")
    (root / "val").rename(root / "test")
    assert len(load_data("imagefolder", str(root)).test.labels) == 6


def test_a_class_that_was_not_trained(tmp_path):
    root = image_folder(tmp_path)
    (root / "val" / "n99999999").mkdir()
    with pytest.raises(UserError, match="n99999999: a class that .* does not have"):
        load_data("imagefolder", str(root))


def broken_images(root):
    folder = root / "train" / "n00000001"
    whole = (folder / "train_0.JPEG").read_bytes()
    (folder / "train_0.JPEG").write_bytes(whole[: len(whole) // 2])  # cut off
    (folder / "train_1.JPEG").write_bytes(b"")
    (folder / "train_2.JPEG").write_bytes(b"<html>404</html>")
    return [str(folder / f"train_{n}.JPEG") for n in range(3)]


@pytest.mark.parametrize("allowed", [1, 2])
def test_no_more_workers_than_cores(tmp_path, monkeypatch, recwarn, allowed):
    """PyTorch would warn, twice, and they would only wait for each other."""
    image_folder(tmp_path)
    monkeypatch.setattr("onebit.data.catalog.cores", lambda: allowed)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    data = load_data("imagefolder", str(tmp_path), image_size=16, workers=8)
    assert data.train.decoder._loader.num_workers == allowed
    assert len(next(iter(data.test.batches([np.arange(1)]))).labels) == 1
    assert not [str(warning.message) for warning in recwarn if "worker" in str(warning.message)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_or_skipped(tmp_path, workers):
    image_folder(tmp_path)
    broken = broken_images(tmp_path)
    rows = [np.arange(12), np.arange(12, 24)]
    data = load_data("imagefolder", str(tmp_path), image_size=16, workers=workers)
    with pytest.raises(UserError, match="n00000001/train_[012].JPEG.*--on-bad-image skip"):
        list(data.train.batches(rows))
    data = load_data("imagefolder", str(tmp_path), image_size=16, workers=workers, on_bad_image="skip")
    labels = [batch.labels.tolist() for batch in data.train.batches(rows)]
    assert labels == [[0] * 8 + [1], [1] * 4 + [2] * 8]
    assert sorted(data.skipped) == broken
    with pytest.raises(UserError, match="none of the 3 images of a batch"):
        list(data.train.batches([np.array([8, 9, 10])], Pass(0, 0)))
    plain = list(data.train.batches([np.array([8, 9, 10]), np.array([0, 8])]))
    assert [batch.labels.tolist() for batch in plain] == [[0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_stay_with_their_images_around_an_unreadable_one(tmp_path, workers):
    """Bad ones first, between and last, in an order that is not that of the files."""
    image_folder(tmp_path)
    broken_images(tmp_path)  # rows 8, 9 and 10
    data = load_data("imagefolder", str(tmp_path), image_size=16, workers=workers, on_bad_image="skip")
    for augmented in (None, Pass(0, 0)):
        (batch,) = data.train.batches([np.array([8, 23, 0, 9, 15, 16, 10])], augmented)
        assert batch.labels.tolist() == [2, 0, 1, 2]
        assert batch.images.float().mean(dim=(2, 3)).argmax(dim=1).tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagefolder"])
def test_images_are_standardised_with_the_numbers_of_their_data_set(tmp_path, name):
    """CIFAR's own; and those of ImageNet, which every pretrained net was trained with."""
    expected = {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "imagefolder": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    }[name]
    {"cifar10": cifar10_binary, "cifar100": lambda root: cifar100(root, "binary"), "imagefolder": image_folder}[
        name
    ](tmp_path)
    data = load_data(name, str(tmp_path), image_size=32)
    assert (data.mean, data.deviation) == expected
    if name == "imagefolder":
        data = load_data("imagenet", str(tmp_path), image_size=32)
        assert (data.mean, data.deviation) == expected
    batch = next(iter(data.test.batches([np.arange(3)])))
    images, _ = Feed(data.mean, data.deviation, torch.device("cpu"))(batch)
    mean, deviation = (np.array(numbers)[:, None, None] for numbers in expected)
    assert images.numpy() == pytest.approx((batch.images.numpy() / 255 - mean) / deviation, abs=1e-5)


def test_digits_are_standardised_with_their_own_mean_and_deviation():
    data = load_data("digits")
    pixels = data.train.images / 255
    assert data.mean == pytest.approx((pixels.mean(),))
    assert data.deviation == pytest.approx((pixels.std(),))


COLOUR = (10, 120, 240)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("RGB", COLOUR, COLOUR),
        ("L", 200, (200, 200, 200)),
        ("LA", (200, 255), (200, 200, 200)),
        ("P", 7, COLOUR),
        ("RGBA", (*COLOUR, 255), COLOUR),
        ("RGBA", (*COLOUR, 0), COLOUR),  # opacity is left out, not laid on black
        ("CMYK", (245, 135, 15, 0), COLOUR),
        ("1", 1, (255, 255, 255)),
        ("I;16", 40_000, (156, 156, 156)),  # 40,000 of 65,535 is 156 of 255
    ],
)
def test_images_of_every_mode_become_rgb(tmp_path, mode, value, expected):
    file = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    image = Image.new(mode, (20, 10), value)
    if mode == "P":
        image.putpalette([0, 0, 0] * 7 + [*COLOUR] + [9, 9, 9] * 248)
    image.save(file, quality=100) if mode == "CMYK" else image.save(file)
    pixels = decode(Item(str(file), 8, Crop()))
    assert pixels.shape == (3, 8, 8)
    assert np.abs(pixels.astype(int) - np.array(expected)[:, None, None]).max() <= (2 if mode == "CMYK" else 0)


def test_the_middle_and_the_corners(tmp_path):
    """Shorter side to 8/7 of the square; of a wide image the crop moves along it."""
    pixels = np.zeros((70, 140, 3), np.uint8)
    pixels[:, :, 0] = np.arange(140) + 50
    pixels[:, :, 1] = np.arange(70)[:, None] + 50
    file = str(tmp_path / "wide.png")
    Image.fromarray(pixels).save(file)
    side = 70 * 7 / 8
    assert Crop() == Crop(0.5, 0.5, flip=False)
    for crop in (Crop(), Crop(0, 0), Crop(1, 1), Crop(0, 1, flip=True)):
        square = decode(Item(file, 35, crop)).astype(float)
        left, top = (140 - side) * crop.left + 50, (70 - side) * crop.top + 50
        columns = left + side * (np.arange(35) + 0.5) / 35 - 0.5
        rows = top + side * (np.arange(35) + 0.5) / 35 - 0.5
        expected = columns[::-1] if crop.flip else columns
        inner = slice(2, -2)  # at the edge of the image the resampling has less to average
        assert np.abs(square[0, 10, inner] - expected[inner]).max() < 1
        assert np.abs(square[1, inner, 10] - rows[inner]).max() < 1


def test_a_large_jpeg_is_decoded_smaller_but_looks_the_same(tmp_path):
    ramp = np.linspace(0, 255, 1600).astype(np.uint8)
    pixels = np.stack(
        [np.tile(ramp, (1200, 1)), np.tile(ramp[:1200, None], (1, 1600)), np.full((1200, 1600), 99)], 2
    )
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(tmp_path / "large.jpg", quality=95)
    image.save(tmp_path / "large.png")
    files = [str(tmp_path / f"large.{kind}") for kind in ("jpg", "png")]
    jpeg, png = (decode(Item(file, 32, Crop())).astype(int) for file in files)
    assert np.abs(jpeg - png).mean() < 2
