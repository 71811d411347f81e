"""`net.prepare` and `onebit.load` of whatever a program has: files, bytes, arrays, images of Pillow's."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import onebit
from onebit.errors import UserError
from onebit.imagefiles import read_pixels, standardised
from onebit.modelfile import MAX_FILE, Model, Preprocessing, pack_model, write_model
from wire_models import Chain

NOISE = np.random.default_rng(0).integers(0, 256, (41, 57, 3), np.uint8)
ENGINES = ["native", "reference"]


def model_for(channels=3, height=6, width=5, crop=1.0, **options):
    graph = Chain(channels, height, width).add("adaptive_avg_pool2d", output_size=[1, 1]).model().graph
    mean, std = (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels]
    return Model(graph, Preprocessing(mean, std, crop), **options)


@pytest.fixture(params=ENGINES)
def load(request):
    return lambda model: onebit.load(pack_model(model), engine=request.param)


def encoded(image, kind="png", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def expected(net, path):
    mean, std, share = net.model.preprocessing
    return standardised(read_pixels(path, net.input_shape, share), mean, std)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_one_image_in_every_form(load, tmp_path, channels, crop):
    """All of them give the same bits, with resizing and colours on the way."""
    net = load(model_for(channels, crop=crop))
    picture, path = Image.fromarray(NOISE), tmp_path / "noise.png"
    picture.save(path)
    content = path.read_bytes()
    wide = np.zeros((41, 114, 4), np.uint8)
    wide[:, ::2, :3] = NOISE
    forms = [
        path, str(path), content, bytearray(content), memoryview(content), io.BytesIO(content), NOISE, picture,
        wide[:, ::2, :3], np.asfortranarray(NOISE), NOISE[::-1][::-1], picture.convert("RGBA"), Image.open(path),
    ]  # fmt: skip
    batch = net.prepare(forms)
    assert (batch.shape, batch.dtype) == ((len(forms), channels, 6, 5), np.float32)
    assert batch.flags.c_contiguous
    for found in batch:
        np.testing.assert_array_equal(found, expected(net, path))
    with path.open("rb") as file:
        np.testing.assert_array_equal(net.prepare(file), batch[:1])
        assert not file.closed
    assert net(batch).shape == (len(forms), channels, 1, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3)], ids=str)
def test_arrays_of_the_nets_own_size(load, channels, shape):
    """Taken as they are; grey and colour as Pillow makes them."""
    net, pixels = load(model_for(channels)), NOISE[:6, :5, : shape[2] if len(shape) == 3 else 1].reshape(shape)
    before = pixels.copy()
    mode = "L" if channels == 1 else "RGB"
    picture = Image.fromarray(pixels.reshape(6, 5) if shape != (6, 5, 3) else pixels).convert(mode)
    taken = np.asarray(picture).reshape(6, 5, channels).transpose(2, 0, 1)
    mean, std, _ = net.model.preprocessing
    batch = net.prepare(pixels)
    np.testing.assert_array_equal(batch[0], standardised(taken, mean, std))
    batch[:] = 0
    np.testing.assert_array_equal(pixels, before)


def test_colours_become_grey_as_with_pillow():
    every = np.random.default_rng(1).integers(0, 256, (500, 400, 3), np.uint8)
    every[:2, :2] = [[[0, 0, 0], [255, 255, 255]], [[255, 0, 0], [0, 0, 255]]]
    found = read_pixels(every, (1, 500, 400))
    np.testing.assert_array_equal(found[0], np.asarray(Image.fromarray(every).convert("L")))


def test_lists(load, tmp_path):
    net, frames = load(model_for()), np.stack([NOISE, NOISE[::-1], NOISE[:, ::-1]])
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    batch = net.prepare(*frames)
    np.testing.assert_array_equal(net.prepare(frames), batch)
    np.testing.assert_array_equal(net.prepare(list(frames)), batch)
    np.testing.assert_array_equal(net.prepare(tuple(frames[:1]), [frames[1], [frames[2]]]), batch)
    np.testing.assert_array_equal(net.prepare(path for path in sorted(tmp_path.iterdir())), batch)
    assert not np.array_equal(batch[0], batch[1])


@pytest.mark.parametrize("nothing", [(), ([],), ([], ()), (np.zeros((0, 6, 5, 3), np.uint8),)], ids=repr)
def test_nothing(load, nothing):
    with pytest.raises(UserError, match="^there is nothing to prepare: name one image or more$"):
        load(model_for()).prepare(*nothing)


def test_turned_as_the_exif_says(load, tmp_path):
    """A quarter, as files: the user's image stays as it was."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(Image.fromarray(NOISE), exif=exif)
    net, opened = load(model_for()), Image.open(io.BytesIO(content))
    plain = net.prepare(np.ascontiguousarray(np.rot90(NOISE, -1)))
    np.testing.assert_array_equal(net.prepare(content), plain)
    np.testing.assert_array_equal(net.prepare(opened), plain)
    assert opened.size == (57, 41)
    assert opened.getexif()[0x0112] == 6


MODES = ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_pillows_as_from_a_file(load, mode):
    if mode == "I;16":
        image = Image.fromarray(NOISE[:, :, 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(NOISE).convert("L" if mode == "LA" else "RGB").convert(mode)
    content = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    for channels in (1, 3):
        net = load(model_for(channels))
        np.testing.assert_array_equal(net.prepare(image), net.prepare(content))


TEXT = io.StringIO("not an image")
BAD = [
    (
        NOISE.astype(np.float32),
        "pixels must be uint8, from 0 to 255, not float32; of 0 to 1, (x * 255).round().astype(numpy.uint8)",
    ),
    (NOISE.astype(int), "not int64; of 0 to 255, x.astype(numpy.uint8)"),
    ("", "an empty text is no name of a file"),
    (NOISE > 9, "pixels must be uint8, from 0 to 255, not bool"),
    (NOISE.astype(np.uint16), "not uint16; of 16 bits, (x >> 8).astype(numpy.uint8)"),
    (NOISE.astype(object), "not object"),
    (np.zeros((6, 5, 4), np.uint8), "not (6, 5, 4): leave the fourth channel out with x[:, :, :3]"),
    (np.zeros((6, 5, 2), np.uint8), "must be (height, width), grey, or (height, width, 3), RGB, not (6, 5, 2)"),
    (np.zeros((6, 5, 0), np.uint8), "not (6, 5, 0)"),
    (np.zeros((3, 6, 5), np.uint8), "not (3, 6, 5): x.transpose(1, 2, 0) makes it so"),
    (np.zeros((1, 6, 5), np.uint8), "not (1, 6, 5): x.transpose(1, 2, 0) makes it so"),
    (np.zeros(6, np.uint8), "not (6,)"),
    (np.zeros((), np.uint8), "not ()"),
    (np.zeros((2, 2, 2, 2, 3), np.uint8), "not (2, 2, 2, 2, 3)"),
    (np.zeros((0, 5, 3), np.uint8), "it has 5 x 0 pixels: there is nothing in it"),
    (np.zeros((6, 0), np.uint8), "it has 0 x 6 pixels: there is nothing in it"),
    (Image.new("RGB", (0, 6)), "it has 0 x 6 pixels: there is nothing in it"),
    (Image.new("F", (6, 5)), "its pixels have 32 bits"),
    (b"", "not an image of a known kind, or empty"),
    (b"photo.jpg", "not an image of a known kind, or empty"),
    (encoded(Image.fromarray(NOISE))[:900], "truncated"),
    (io.BytesIO(), "not an image of a known kind, or empty"),
    (TEXT, "it is open as text: open it as bytes, with 'rb'"),
    (torch.zeros(6, 5, 3), "is expected, not Tensor: use x.numpy(), of (height, width, channels)"),
    (None, "a path, bytes, an open file, an array or an image of Pillow's is expected, not NoneType"),
    (7, "is expected, not int"),
]  # fmt: skip


@pytest.mark.parametrize(("image", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_no_images(load, image, said):
    net = load(model_for())
    for given, name in (([image], "the image"), ([NOISE, image, NOISE], "image 2 of 3")):
        with pytest.raises(UserError) as raised:
            net.prepare(*given)
        assert str(raised.value).startswith(f"{name}: ")
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_picture_that_was_closed(load):
    shut = Image.open(io.BytesIO(encoded(Image.fromarray(NOISE))))
    shut.close()
    with pytest.raises(UserError, match="^the image: .*closed"):
        load(model_for()).prepare(shut)


def test_errors_name_the_file(load, tmp_path):
    net, cut = load(model_for()), tmp_path / "cut.png"
    cut.write_bytes(encoded(Image.fromarray(NOISE))[:900])
    with cut.open("rb") as file, Image.open(cut) as opened:
        for image in (cut, str(cut), file, opened):
            with pytest.raises(UserError, match=rf"^{re.escape(str(cut))}: .*truncated"):
                net.prepare(NOISE, image)
    for path, said in ((tmp_path / "none.png", "no such file"), (tmp_path, "a folder, not a file")):
        with pytest.raises(UserError) as raised:
            net.prepare(path)
        assert str(raised.value) == f"{path}: {said}"


def test_the_users_home(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Image.fromarray(NOISE).save(tmp_path / "noise.png")
    net = load(model_for())
    np.testing.assert_array_equal(net.prepare("~/noise.png"), net.prepare(NOISE))


def test_nets_that_take_no_pictures(load):
    bare = Model(model_for().graph)
    with pytest.raises(UserError, match="does not say how a picture becomes its input"):
        load(bare).prepare(NOISE)
    two = Model(Chain(2, 6, 5).add("relu").model().graph, Preprocessing((0.5, 0.5), (1, 1)))
    with pytest.raises(UserError, match=r"takes images of 2 channels; image files have 1 \(grey\) or 3"):
        load(two).prepare(np.zeros((6, 5, 2), np.uint8))


WITHOUT_PILLOW = """
import sys
sys.modules["PIL"] = None
import numpy as np
import onebit
net = onebit.load("zoo:cifar10-w1a1", engine=sys.argv[1])
pixels = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
print(net(net.prepare(pixels, pixels[:, :, 0])).shape)
for image in (pixels[:31], "photo.jpg", b"bytes"):
    try:
        net.prepare(image)
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_without_pillow(engine):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PILLOW, engine], capture_output=True, text=True, check=False, timeout=120
    )
    told = "image files, and images that must be resized, need Pillow: pip install pillow; an array of uint8, "
    told += "32 x 32, does not"
    assert (done.stdout.splitlines(), done.stderr) == (["(2, 10)", told, told, told], "")


def test_without_pillow_sides_are_said_as_arrays_have_them(load, monkeypatch):
    net = load(model_for())
    assert net.prepare(np.zeros((6, 5, 3), np.uint8)).shape == (1, 3, 6, 5)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="an array of uint8, 6 x 5, does not$"):
        net.prepare(np.zeros((5, 6, 3), np.uint8))


def test_shapes(load):
    net = load(model_for())
    assert (net.input_shape, net.output_shape) == ((3, 6, 5), (3, 1, 1))
    x = np.zeros((2, *net.input_shape), np.float32)
    assert net(x).shape == (2, *net.output_shape)
    flat = load(Chain(2, 3, 4).add("reshape", shape=[24]).model())
    assert (flat.input_shape, flat.output_shape) == ((2, 3, 4), (24,))
    with pytest.raises(AttributeError):
        net.input_shape = (1, 1, 1)


class Slowly(io.RawIOBase):
    """A pipe: a few bytes at a time."""

    def __init__(self, content):
        self.content = io.BytesIO(content)

    def read(self, size=-1):
        return self.content.read(min(size, 100))


@pytest.mark.parametrize("engine", ENGINES)
def test_load_from_memory(tmp_path, engine):
    path = tmp_path / "net.onebit"
    write_model(model_for(classes=("a", "b", "c")), path)
    content = path.read_bytes()
    x = np.random.default_rng(2).normal(size=(2, 3, 6, 5)).astype(np.float32)
    wanted = onebit.load(path, engine=engine)(x)
    later = io.BytesIO(b"before" + content)
    later.seek(6)
    with path.open("rb") as file:
        streams = [io.BytesIO(content), later, file, Slowly(content)]
        for source in (str(path), content, bytearray(content), memoryview(content), *streams):
            net = onebit.load(source, engine=engine)
            assert net.model.classes == ("a", "b", "c")
            np.testing.assert_array_equal(net(x), wanted)
        assert not file.closed


def test_what_can_not_be_loaded(tmp_path):
    path = tmp_path / "cut.onebit"
    path.write_bytes(pack_model(model_for())[:-3])
    damaged = "not a .onebit file, or only its beginning"
    named = f"^{re.escape(str(path))}: {damaged}"
    with path.open("rb") as file, pytest.raises(onebit.ModelFileError, match=named):
        onebit.load(file)
    for source in (path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(onebit.ModelFileError, match=f"^{damaged}"):
            onebit.load(source)
    for empty in (b"", io.BytesIO()):
        with pytest.raises(onebit.ModelFileError, match="it is empty"):
            onebit.load(empty)
    with pytest.raises(UserError, match="^the model file: it is open as text: open it as bytes, with 'rb'$"):
        onebit.load(io.StringIO("text"))
    for wrong in (None, 5, ["net.onebit"]):
        with pytest.raises(UserError, match="its path, its bytes, or a file that is open, not "):
            onebit.load(wrong)


def test_a_stream_without_end_is_refused():
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            part = bytes(min(size, 1 << 26))
            self.given += len(part)
            return part

    endless = Endless()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("onebit.loading.MAX_FILE", 1 << 20)
        patched.setattr("onebit.container.MAX_FILE", 1 << 20)
        with pytest.raises(onebit.ModelFileError, match="larger than the 1048576 bytes"):
            onebit.load(endless)
    assert endless.given == (1 << 20) + 1
    assert MAX_FILE > 1 << 20


def test_paths_of_many_kinds(tmp_path):
    write_model(model_for(), tmp_path / "net.onebit")
    assert onebit.load(Path(tmp_path / "net.onebit")).output_shape == (3, 1, 1)
    assert onebit.load("zoo:cifar10-w1a1").output_shape == (10,)


def test_open_files_are_called_by_their_names(tmp_path):
    """A file that is open by its number has a number for a name, and that says nothing."""
    path = tmp_path / "cut.onebit"
    path.write_bytes(pack_model(model_for())[:-3])
    with path.open(encoding="latin-1") as file, pytest.raises(UserError) as raised:
        onebit.load(file)
    assert str(raised.value) == f"{path}: it is open as text: open it as bytes, with 'rb'"
    with open(os.open(path, os.O_RDONLY), "rb") as file, pytest.raises(onebit.ModelFileError) as raised:  # noqa: PTH123
        onebit.load(file)
    assert str(raised.value).startswith("not a .onebit file, or only its beginning")


def test_what_a_net_is_called(load):
    net = load(Model(model_for().graph, description="flowers"))
    assert repr(net) == f"<flowers: images of 3 x 6 x 5, engine {net.engine!r}>"
    assert repr(load(Model(model_for().graph))).startswith("<a net: images of 3 x 6 x 5, ")
