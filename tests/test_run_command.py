"""`onebit run`: image files through a packed net, and pixels the same as in training."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import onebit
from onebit.classifying import classify, find_images, guesses
from onebit.data.catalog import load_data
from onebit.data.decoding import SHARE, Item, decode
from onebit.data.digits import load_digit_pixels
from onebit.engine import Engine
from onebit.imagefiles import BadImageError, Crop, read_pixels, standardised
from onebit.modelfile import Model, Preprocessing, read_model, write_model
from onebit.reference import Reference
from onebit.training.evaluation import Feed
from packed_nets import small_model
from terminals import ONEBIT, Terminal
from training_runs import call, command, small_run, start
from wire_models import Chain

KINDS = ("png", "webp", "jpg")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A digits net, as a file."""
    run = tmp_path_factory.mktemp("runs") / "run"
    small_run(run, epochs=1, limit_images=400, width=4, activation_bits=1)
    from onebit.commands import main

    assert main(["export", str(run), "--json"]) == 0
    return run / "net.onebit"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The first test images as files of every kind, some in a folder inside."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "more").mkdir()
    (folder / ".hidden").mkdir()
    images = load_digit_pixels()[1].images[:70, 0]
    for number, pixels in enumerate(images):
        kind = KINDS[number % 3]
        options = {"lossless": True} if kind == "webp" else {}
        place = folder / ("more" if number % 2 else ".") / f"{number:02d}.{kind}"
        Image.fromarray(pixels).save(place, **options)
        Image.fromarray(pixels).save(folder / ".hidden" / f"{number}.png")
    (folder / "notes.txt").write_text("not an image, and not meant")
    return folder


def lines_of(out):
    return [json.loads(line) for line in out.splitlines()]


def test_every_image_of_a_folder_gets_what_the_net_says(net, digits, capsys):
    code, out, err = call(capsys, "run", str(net), str(digits), "--json", "--top", "10")
    assert (code, err) == (0, "")
    found = lines_of(out)
    assert len(found) == 70
    names = [each["image"] for each in found]
    top_level = [name for name in names if "/more/" not in name]
    assert names == [*sorted(top_level), *sorted(set(names) - set(top_level))]
    packed, model = onebit.load(net), read_model(net)
    for each in found:
        number = int(each["image"].rsplit("/", 1)[1][:2])
        pixels = np.asarray(Image.open(each["image"]).convert("L"))[None, None]
        if number % 3 < 2:  # what loses nothing
            assert np.array_equal(pixels[0, 0], load_digit_pixels()[1].images[number, 0])
        logits = packed(standardised(pixels, *model.preprocessing[:2]))[0].astype(np.float64)
        shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        top = each["top"]
        assert [guess["index"] for guess in top] == list(np.argsort(-logits, kind="stable"))
        assert [guess["class"] for guess in top] == [str(guess["index"]) for guess in top]
        np.testing.assert_allclose([g["probability"] for g in top], np.sort(shares)[::-1], rtol=1e-6)
        assert abs(sum(guess["probability"] for guess in top) - 1) < 1e-9


def test_threads(net, digits, capsys, monkeypatch):
    """All cores, or as many as is said; the same answers, in the same order."""
    seen = []

    class Watched(Engine):
        def __call__(self, x):
            seen.append((self.threads, len(x)))
            return super().__call__(x)

    monkeypatch.setattr("onebit.loading.Engine", Watched)
    for place in ("onebit.native", "onebit.commands"):
        monkeypatch.setattr(f"{place}.cores", lambda: 5)
    words = ("run", str(net), str(digits), "--json", "--top", "10")
    expected = call(capsys, *words, "--threads", "1")
    assert expected[0] == 0
    assert call(capsys, *words) == expected
    assert call(capsys, *words, "--threads", "3") == expected
    # As many images for each thread, if there are enough.
    assert seen == [(1, 32), (1, 32), (1, 6), (5, 35), (5, 35), (3, 33), (3, 33), (3, 4)]


def test_as_a_table(net, digits, capsys):
    code, out, _ = call(capsys, "run", str(net), str(digits / "00.png"), str(digits / "02.jpg"), "--top", "2")
    assert code == 0
    head, first, second = out.splitlines()
    assert head.split() == ["image", "class", "sure", "class", "sure"]
    assert head.index("sure") + 4 == first.index("%") + 1
    assert first.startswith(f"{digits}/00.png  ")
    assert first.count(" %") == second.count(" %") == 2
    assert first.index("%") == second.index("%")


def test_patterns_and_pipes(net, digits, capsys):
    code, out, _ = call(capsys, "run", str(net), f"{digits}/**/*.webp", "--json")
    assert code == 0
    assert len(lines_of(out)) == len(list(digits.glob("[0-9]*.webp"))) + len(list(digits.glob("more/*.webp")))

    image = (digits / "00.png").read_bytes()
    listed = f"{digits}\n{digits}/00.png\n{digits}/more/01.webp\r\n"  # as `find` says it, the folder, too
    nul = f"{digits}/00.png\0{digits}/more/01.webp\0"
    for piped, names in (
        (image, ["stdin"]),
        (listed.encode(), [f"{digits}/00.png", f"{digits}/more/01.webp"]),
        (nul.encode(), [f"{digits}/00.png", f"{digits}/more/01.webp"]),
        (f"{digits}/more\n{digits}/more\n".encode(), sorted(map(str, digits.glob("more/*")))),  # folders alone
    ):
        words = [sys.executable, "-m", "onebit", "run", str(net), "-", "--json"]
        done = subprocess.run(words, input=piped, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        found = lines_of(done.stdout.decode())
        assert [each["image"] for each in found] == names
    direct = lines_of(call(capsys, "run", str(net), str(digits / "more"), "--json")[1])
    assert [each["top"] for each in found] == [each["top"] for each in direct]
    words = [sys.executable, "-m", "onebit", "run", str(net), "-"]
    for piped in (b"", b"\n\n", b"\x01\x02\x03", str(digits / ".hidden").encode() + b"/nothing"):
        done = subprocess.run(words, input=piped, capture_output=True, check=False)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr


def test_a_bad_image_is_named_and_the_rest_goes_on(net, digits, tmp_path, capsys):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.jpg").write_bytes(b"")
    whole = (digits / "02.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "good.png").write_bytes((digits / "00.png").read_bytes())
    words = ["run", str(net), str(tmp_path), str(tmp_path / "none.png"), str(digits / "more"), str(tmp_path / "x*")]
    code, out, err = call(capsys, *words)
    assert code == 1
    assert len(out.splitlines()) == 1 + 1 + 35
    for line in (
        "text.png: not an image",
        "empty.jpg: ",
        "half.jpg: ",
        "none.png: no such file",
        "x*: no file is named so",
    ):
        assert line in err
    assert err.splitlines()[-1] == "onebit run: 5 of 41 images could not be read"
    code, out, err = call(capsys, *words, "--json")
    assert code == 1
    assert sum("error" in each for each in lines_of(out)) == 5
    assert len(lines_of(out)) == 41


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["none.onebit", "DIGITS/00.png"], "none.onebit: no such file; a .onebit file is expected"),
        (["DIGITS", "DIGITS/00.png"], "a folder, not a file"),
        (["text.onebit", "DIGITS/00.png"], "text.onebit: not a .onebit file"),
        (["cut.onebit", "DIGITS/00.png"], "cut.onebit: not a .onebit file, or damaged"),
        (["NET", "none.png"], "none.png: no such file"),
        (["NET", "empty"], "empty: no images in this folder"),
        (["NET", "x*.png"], "x*.png: no file is named so"),
        (["NET", "DIGITS/00.png", "--top", "0"], "--top 0: use at least 1"),
        (["NET", "DIGITS/00.png", "--topp", "1"], "did you mean --top?"),
        (["NET", "DIGITS/00.png", "--threads", "all"], "--threads all: use a whole number, or 'auto' (or 0) for"),
        (["NET", "DIGITS/00.png", "--threads", "²"], "--threads ²: use a whole number"),
        (["NET"], "IMAGE"),
        (["plain.onebit", "DIGITS/00.png"], "does not say how a picture becomes its input"),
        (["five.onebit", "DIGITS/00.png"], "the net takes images of 5 channels; image files have 1"),
    ],
)
def test_mistakes(words, line, net, digits, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.onebit").write_text("this is text")
    (tmp_path / "cut.onebit").write_bytes(net.read_bytes()[:-100])
    model = read_model(net)
    write_model(Model(model.graph), tmp_path / "plain.onebit")
    small = small_model()
    graph = type(small.graph)((5, *small.graph.input_shape[1:]), small.graph.nodes)
    first = graph.nodes[0]
    if "weight" in first.tensors:
        shape = list(first.tensors["weight"].shape)
        shape[1] = 5
        first.tensors["weight"] = np.ones(shape, np.float32)
    write_model(Model(graph, Preprocessing((0.5,) * 5, (1.0,) * 5)), tmp_path / "five.onebit")
    code, out, err = call(
        capsys, "run", *(word.replace("NET", str(net)).replace("DIGITS", str(digits)) for word in words)
    )
    assert code == 2
    assert out == ""
    assert line in err
    assert err.count("\n") == 1


def test_other_numbers_of_channels_are_made_the_nets(net, digits, tmp_path, capsys):
    """Colour, palettes, transparency, 16 bits: the same grey picture gives the same answer."""
    pixels = np.asarray(Image.open(digits / "00.png"))
    grey = Image.fromarray(pixels)
    for mode in ("RGB", "RGBA", "P", "LA"):
        grey.convert(mode).save(tmp_path / f"{mode}.png")
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    expected = lines_of(call(capsys, "run", str(net), str(digits / "00.png"), "--json")[1])[0]["top"]
    code, out, _ = call(capsys, "run", str(net), str(tmp_path), "--json")
    assert code == 0
    found = lines_of(out)
    assert len(found) == 5
    for each in found:
        assert each["top"] == expected, each["image"]
    Image.fromarray(pixels.astype(np.float32)).save(tmp_path / "float.tiff")
    code, _, err = call(capsys, "run", str(net), str(tmp_path))
    assert code == 1
    assert "float.tiff: its pixels have 32 bits" in err


def test_links_to_folders_are_followed_once(net, digits, tmp_path, capsys):
    """As training follows those of its classes; one that leads back ends there."""
    (tmp_path / "a").symlink_to(digits / "more")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "back").symlink_to(tmp_path)
    (tmp_path / "b" / "c").symlink_to(digits)
    code, out, err = call(capsys, "run", str(net), str(tmp_path), "--json")
    names = [json.loads(line)["image"] for line in out.splitlines()]
    assert (code, err) == (0, "")
    more = [f"{tmp_path}/a/{file.name}" for file in sorted((digits / "more").iterdir())]
    own = sorted(file.name for file in digits.iterdir() if file.is_file() and file.suffix != ".txt")
    assert names == [*more, *(f"{tmp_path}/b/c/{name}" for name in own)]


def test_a_folder_that_can_not_be_listed_is_named(net, digits, tmp_path, capsys, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    code, out, err = call(capsys, "run", str(net), str(tmp_path), str(digits / "00.png"))
    assert code == 1
    assert "closed: Permission denied" in err
    assert len(out.splitlines()) == 2


def test_names_that_terminals_would_obey(net, digits, tmp_path, capsys):
    (tmp_path / "a\x1b[31m\n.png").write_bytes((digits / "00.png").read_bytes())
    undecodable = os.fsencode(tmp_path) + b"/\xff.png"
    with open(undecodable, "wb") as file:  # noqa: PTH123
        file.write((digits / "00.png").read_bytes())
    code, out, _ = call(capsys, "run", str(net), str(tmp_path))
    assert code == 0
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3
    assert "a\\x1b[31m\\n.png" in out
    assert "\\udcff.png" in out


def test_test_images_of_training_and_pictures_of_a_packed_net_are_the_same_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 130, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    trained = decode(Item(str(tmp_path / "photo.png"), 24, Crop()))
    packed = read_pixels(tmp_path / "photo.png", (3, 24, 24), SHARE)
    assert np.array_equal(trained, packed)
    feed = Feed(mean, deviation, torch.device("cpu"))
    from onebit.data.splits import Batch

    expected = feed(Batch(torch.from_numpy(trained)[None], torch.zeros(1)))[0].numpy()
    assert np.array_equal(standardised(packed[None], mean, deviation), expected)


def test_a_part_that_is_not_square(tmp_path):
    """A wide net takes the middle of a tall picture, as wide as it is."""
    pixels = np.zeros((120, 60), np.uint8)
    pixels[45:75] = 255
    Image.fromarray(pixels).save(tmp_path / "tall.png")
    assert read_pixels(tmp_path / "tall.png", (1, 10, 20)).min() > 200  # resampling sees a little of what is beyond
    assert read_pixels(tmp_path / "tall.png", (1, 14, 20)).min() == 0
    half = read_pixels(tmp_path / "tall.png", (1, 10, 10), 0.25)
    assert half.shape == (1, 10, 10)
    assert half.min() == 255


def test_a_photograph_that_a_phone_has_turned(tmp_path):
    """EXIF says how it was held."""
    pixels = np.zeros((40, 40), np.uint8)
    pixels[:20] = 255
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    found = read_pixels(tmp_path / "turned.jpg", (1, 4, 4)).astype(int)
    assert found[0, :, 3].min() > 200
    assert found[0, :, 0].max() < 50


def test_from_python(net, digits):
    packed = onebit.load(net)
    batch = packed.prepare(digits / "00.png", io.BytesIO((digits / "more" / "01.webp").read_bytes()))
    test = load_data("digits").test
    mean, std, _ = packed.model.preprocessing
    assert np.array_equal(batch, standardised(test.images[:2], mean, std))
    with pytest.raises(BadImageError, match=r"digits0/none\.png: no such file$"):
        packed.prepare(digits / "none.png")


def test_the_engines_say_the_same(net, digits):
    images = find_images([str(digits)])
    native, reference = (
        list(classify(onebit.load(net, engine=name), images, 10)) for name in ("native", "reference")
    )
    for one, other in zip(native, reference, strict=True):
        assert one.name == other.name
        assert [guess.number for guess in one.guesses] == [guess.number for guess in other.guesses]


def test_without_torch(net, digits):
    code = f"""
import sys
sys.modules["torch"] = None
from onebit.commands import main
raise SystemExit(main(["run", {str(net)!r}, {str(digits / "00.png")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "00.png" in done.stdout


def test_a_reader_that_has_had_enough(net, digits):
    shell = f"{sys.executable} -m onebit run {net} {digits} {digits} {digits} --json --top 10 | head -1"
    done = subprocess.run(
        ["bash", "-c", shell + "; echo ${PIPESTATUS[0]}"], capture_output=True, text=True, check=False
    )
    first, code = done.stdout.splitlines()
    assert json.loads(first)["top"]
    assert code in {"0", "141"}
    assert done.stderr == ""


def test_ctrl_c(net, digits):
    many = [str(digits)] * 2000
    process = start("run", str(net), *many)
    for _ in range(100):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "onebit run: stopped\n"


def test_progress_in_words_goes_to_stderr_and_quiet_stops_it(net, digits, monkeypatch, capsys):
    monkeypatch.setattr("onebit.console.LINE_SECONDS", 0)
    code, out, err = call(capsys, "run", str(net), str(digits), "--top", "1")
    assert code == 0
    assert "images: 70 of 70" in err
    assert len(out.splitlines()) == 71
    assert call(capsys, "run", str(net), str(digits), "--top", "1", "--quiet")[2] == ""


def test_as_a_process(net, digits):
    code, out, err = command("run", str(net), str(digits / "00.png"))
    assert (code, err) == (0, "")
    assert out.count("%") == 3
    assert command("run", str(net), str(digits / "00.png"), "--threads", "1") == (code, out, err)
    code, out, err = command("run", str(net), str(digits / "00.png"), "--threads", "0")
    assert (code, err) == (0, "")
    code, out, _ = command("run", "--help")
    assert (code, "(default: auto, all cores that this process may use)" in " ".join(out.split())) == (0, True)


def test_any_size_of_image(tmp_path):
    """A box that rounds to a little outside of the image is still inside."""
    for size in range(28, 480):
        file = io.BytesIO()
        Image.new("L", (size, size + size % 7), 90).save(file, "BMP")
        assert (read_pixels(file, (1, 28, 28)) == 90).all()


@pytest.mark.parametrize("error", [struct.error("unpack"), TypeError("exif"), NotImplementedError("kind")])
def test_whatever_a_damaged_image_raises(error, net, digits, capsys, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("PIL.ImageOps.exif_transpose", fail)
    code, _, err = call(capsys, "run", str(net), str(digits / "00.png"))
    assert code == 1
    assert f"00.png: {error}" in err


def test_kinds_of_files_that_start_programs_are_not_read(net, digits, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    (tmp_path / "evil.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\nshowpage\n"
    )
    code, _, err = call(capsys, "run", str(net), str(tmp_path / "evil.png"), str(digits / "00.png"))
    assert code == 1
    assert "evil.png: not an image of a known kind" in err


def test_odd_names_are_named_and_the_rest_goes_on(net, digits, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "~$lock.png").write_bytes((digits / "00.png").read_bytes())
    words = ["~$lock.png", "~nobody-of-this-name/x.png", "x" * 300 + ".png", "pipe.png", str(digits / "00.png")]
    code, out, err = call(capsys, "run", str(net), *words, "--json")
    assert code == 1
    found = lines_of(out)
    assert ["top" in each for each in found] == [True, False, False, False, True]
    assert [each["image"] for each in found] == words
    assert "pipe.png: not a file that can be read to its end" in err


def test_stdin_that_is_closed(net):
    line = f"{sys.executable} -m onebit run {net} - <&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_results_into_a_file_while_the_bar_is_on_the_screen(net, digits, tmp_path):
    line = f"{' '.join(ONEBIT)} run {net} {digits} > {tmp_path / 'out.txt'}"
    code, shown = Terminal(command=["bash", "-c", line]).end()
    assert code == 0, shown
    assert "images" in shown
    assert "\x1b" in shown
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 71
    assert ".png" not in shown


def test_a_palette_with_transparency_warns_of_nothing(tmp_path):
    image = Image.new("P", (9, 9))
    image.putpalette([0, 0, 0, 99, 99, 99, 255, 255, 255])
    image.save(tmp_path / "p.png", transparency=b"\x00\x80\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_pixels(tmp_path / "p.png", (3, 4, 4)).shape == (3, 4, 4)


def test_of_classes_that_are_equal_the_first_is_named():
    """Also among many, where a sort that is not stable takes any of them."""
    net = Reference(Chain(40, 1, 1).add("reshape", shape=[40]).model())
    outputs = np.zeros((3, 40), np.float32)
    outputs[1, [7, 30, 12]] = 2
    outputs[2, 39] = 1
    found = guesses(net, outputs.reshape(3, 40, 1, 1), 5)
    assert [[guess.number for guess in each] for each in found] == [
        [0, 1, 2, 3, 4], [7, 12, 30, 0, 1], [39, 0, 1, 2, 3],
    ]  # fmt: skip
