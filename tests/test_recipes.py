"""Recipes, budgets and flags: what counts, and what is refused."""

import contextlib
import io
import math
import shlex
import tomllib
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import image_folder
from onebit.commands import _parse, make_parser
from onebit.commands.train import config_flags
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.training.config import Config
from onebit.training.nets import spec_of
from onebit.training.recipes import checked, command_of, read_recipe, recipe_names, resolve, to_toml
from onebit.training.schedule import factor, stages
from training_runs import call

PAPER = [
    *(
        f"{data}-pcnn{net}{i}{j}"
        for data in ("cifar10", "cifar100")
        for net in ("22", "40")
        for i in ("", "-i64")
        for j in ("", "-j2", "-j4")
    ),
    *(f"{data}-wrn{net}{i}" for data in ("cifar10", "cifar100") for net in ("22", "40") for i in ("", "-i64")),
    "imagenet-pcnn-resnet18",
    "imagenet-pcnn-resnet18-j2",
    "imagenet-pcnn-resnet18-w1a1",
    "imagenet-pcnn-vgg16",
    "imagenet-resnet18",
    "imagenet-vgg16",
    "cifar10-mcdonnell22-i64",
]


def test_there_is_a_recipe_for_every_net_of_the_paper():
    assert set(PAPER) | {"digits-pcnn22", "digits-wrn22"} == set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_what_its_name_says(name):
    config = resolve(name, "paper", {})
    assert config.data == name.split("-")[0]
    assert config.method == next((method for method in ("pcnn", "mcdonnell") if method in name), "float")
    assert config.projections == int(name.split("-j")[1]) if "-j" in name else config.projections == 1
    assert config.nesterov == ("mcdonnell" not in name)
    if "cifar" in name:
        assert config.width == (64 if "i64" in name else 16)
        assert config.model == ("wrn40" if "40" in name else "wrn22")
        epochs = sum(2**n for n in range(1, 8)) if config.sched == "restarts" else 200
        assert (config.epochs, config.batch_size, config.lr, config.weight_decay) == (epochs, 128, 0.1, 5e-4)
        assert (config.milestones, config.decay_rate, config.activation_bits) == ((60, 120, 160), 0.2, None)
    if "imagenet" in name:
        assert (config.epochs, config.lr, config.weight_decay) == (60, 0.1, 1e-4)
        assert (config.milestones, config.decay_rate) == ((20, 40), 0.1)
        assert config.two_stage == name.endswith("w1a1")
    if "pcnn" in name and "digits" not in name:
        assert config.lr_w == 0.01
    text = resources.files("onebit.training").joinpath("recipes", f"{name}.toml").read_text()
    assert len(text.splitlines()) < 16
    assert text.startswith("#")


@pytest.mark.parametrize("name", [name for name in recipe_names() if "64" not in name and "vgg" not in name])
def test_a_recipe_builds_its_net(name):
    shape = {"digits": (1, 8, 8), "imagenet": (3, 224, 224)}.get(name.split("-")[0], (3, 32, 32))
    data = DataSet(None, None, list(map(str, range(10))), shape, (0.5,) * shape[0], (0.5,) * shape[0])
    config = resolve(name, "paper", {})
    net = spec_of(config, data).build()
    assert sum(p.numel() for p in net.parameters()) > 100_000


def test_flags_count_more_than_budgets_and_budgets_more_than_recipes():
    paper, cpu, smoke = (resolve("cifar10-pcnn22", budget, {}) for budget in ("paper", "cpu", "smoke"))
    assert (paper.epochs, paper.sched, paper.warmup_epochs) == (200, "step", 0)
    assert (cpu.epochs, cpu.sched, cpu.warmup_epochs) == (20, "cosine", 1)
    assert (smoke.epochs, smoke.sched) == (1, "cosine")
    assert smoke.limit_images == 512
    flags = {"epochs": "7", "sched": "step", "milestones": "3,5"}
    mixed = resolve("cifar10-pcnn22", "cpu", flags)
    assert (mixed.epochs, mixed.sched, mixed.milestones, mixed.width) == (7, "step", (3, 5), 16)
    assert resolve("imagenet-pcnn-resnet18-w1a1", "cpu", {"stage2_epochs": "30"}).stage2_epochs == 30
    for budget in ("cpu", "smoke"):
        for name in recipe_names():
            resolve(name, budget, {})


def test_a_config_is_a_recipe(tmp_path):
    for name, flags in (
        ("cifar10-pcnn22-j4", {"lam": "1e-3", "levels": "-1,0,1"}),
        ("imagenet-pcnn-resnet18-w1a1", {}),
    ):
        config = resolve(name, "cpu", flags)
        file = tmp_path / "config.toml"
        file.write_text(to_toml(config))
        assert resolve(str(file), "paper", {}) == config
        assert tomllib.loads(file.read_text())["batch_size"] == config.batch_size


def test_awkward_text_survives_toml(tmp_path):
    config = checked({"data_dir": 'a "b" \\ c\n\u00fc\u2028\x7f'})
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert read_recipe(str(file))["data_dir"] == config.data_dir


def again(line):
    """The config that a line asks for."""
    words = shlex.split(line)
    assert words[:2] == ["onebit", "train"]
    arguments = _parse("train", words[1:])
    return resolve(arguments.recipe, arguments.budget, config_flags(arguments))


COUNTS, SIZES = st.integers(1, 4096), st.floats(1e-12, 1e6)
ABSENT = st.none()
METHODS = [
    {"method": st.just("pcnn"), "projections": COUNTS, "lam": SIZES, "eta": st.just(0.0) | SIZES,
     "forward_w": st.sampled_from(["elementwise", "mean"]), "w_init": st.sampled_from(["ones", "signs", "normal"]),
     "scale": st.sampled_from(["layer", "kernel"])},
    {"levels": st.integers(2, 65536) | st.sets(st.floats(-9, 9), min_size=2, max_size=4).map(sorted)},
    {"activation_bits": st.just(1), "two_stage": st.booleans()},
    {"activation_bits": st.just("1"), "two_stage": st.just(True), "stage2_epochs": COUNTS, "stage2_lr": SIZES},
    {"method": st.just("xnor"), "scale_map": ABSENT | st.booleans()},
    {"method": st.just("abc"), "weight_bases": st.integers(1, 64), "activation_bases": st.integers(1, 64)},
    {"method": st.just("mcn"), "theta": SIZES, "kernel_rate": st.just("authors") | SIZES},
    {"method": st.just("bireal"), "magnitude_aware": ABSENT | st.booleans()},
    {"method": st.just("lbcnn"), "sparsity": st.floats(1e-3, 1), "num_intermediate": COUNTS},
]  # fmt: skip
FOLDERS = ABSENT | st.sampled_from(["/data", "/my data/it's", "/-x", "/ü"])
SHARES, SWITCHES = st.floats(0, 0.99), st.booleans()
OTHERS = {
    "model": st.sampled_from(["wrn22", "wrn40", "resnet18", "vgg16"]), "width": ABSENT | COUNTS,
    "dropout": ABSENT | SHARES, "shortcuts": st.sampled_from([None, "block", "conv"]),
    "form": st.sampled_from([None, "bireal", "own"]),
    "data": st.sampled_from(["digits", "cifar10", "imagefolder"]), "data_dir": FOLDERS, "image_size": COUNTS,
    "hold_out": st.just("auto") | st.integers(0, 9999), "limit_images": COUNTS, "workers": COUNTS,
    "on_bad_image": st.sampled_from(["error", "skip"]), "epochs": COUNTS, "batch_size": COUNTS,
    "opt": st.sampled_from(["sgd", "adamw"]), "lr": SIZES, "lr_w": ABSENT | SIZES, "momentum": SHARES,
    "nesterov": SWITCHES,
    "weight_decay": SIZES, "decay_kernels": ABSENT | SWITCHES, "decay_norm_and_bias": SWITCHES,
    "sched": st.sampled_from(["step", "cosine", "restarts"]), "milestones": st.sets(COUNTS, max_size=4).map(sorted),
    "decay_rate": SIZES, "restart_epochs": COUNTS, "restart_factor": COUNTS, "warmup_epochs": SIZES,
    "initial_checkpoint": FOLDERS, "smoothing": SHARES, "teacher": FOLDERS, "distill_weight": SHARES,
    "distill_temperature": SIZES, "model_ema_decay": SHARES, "clip_grad": SIZES, "bn_batches": COUNTS,
    "amp": st.sampled_from([None, "bfloat16", "float16"]), "sync_bn": SWITCHES, "seed": st.integers(0, 2**63 - 1),
    "device": st.sampled_from(["auto", "cpu", "cuda:1"]), "channels_last": SWITCHES, "threads": st.integers(0, 256),
    "test_every": COUNTS, "checkpoint_minutes": SIZES, "checkpoint_steps": COUNTS, "keep_every": COUNTS,
    "tensorboard": SWITCHES,
}  # fmt: skip


@given(st.one_of(*map(st.fixed_dictionaries, METHODS)), st.fixed_dictionaries({}, optional=OTHERS))
def test_a_config_is_a_command(method, others):
    config = checked(method | others)
    assert again(command_of(config)) == config


def test_configs_of_every_key_were_tried():
    assert set(OTHERS).union(*METHODS) == set(Config.model_fields)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "--model wrn22 --method pcnn --data digits"),
        ({"data": "cifar10", "width": 16, "amp": "bfloat16"},
         "--model wrn22 --width 16 --method pcnn --data cifar10 --amp bfloat16"),
        ({"decay_kernels": False, "tensorboard": True},
         "--model wrn22 --method pcnn --data digits --no-decay-kernels --tensorboard"),
        ({"milestones": [3, 5], "levels": (-1, 1)},
         "--model wrn22 --method pcnn --levels=-1.0,1.0 --data digits --milestones 3,5"),
        ({"milestones": (), "levels": 4}, "--model wrn22 --method pcnn --levels 4 --data digits --milestones ''"),
        ({"milestones": (7,)}, "--model wrn22 --method pcnn --data digits --milestones 7"),
        ({"data_dir": "/my data", "method": "xnor", "scale_map": False},
         "--model wrn22 --method xnor --no-scale-map --data digits --data-dir '/my data'"),
    ],
)  # fmt: skip
def test_the_command_of_a_config(keys, line):
    assert command_of(checked(keys)) == f"onebit train {line}"
    assert again(command_of(checked(keys))) == checked(keys)


@pytest.mark.parametrize("name", recipe_names())
def test_the_command_of_a_recipe(name):
    for budget in ("paper", "cpu", "smoke"):
        config = resolve(name, budget, {})
        assert again(command_of(config)) == config


def test_learning_rates_follow_the_schedule():
    config = checked({"epochs": 200, "warmup_epochs": 0})
    (stage,) = stages(config)
    rates = [factor(config, stage, epoch, 0, 10) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])
    config = checked({"epochs": 10, "sched": "cosine", "warmup_epochs": 2})
    (stage,) = stages(config)
    rates = [factor(config, stage, step // 5, step % 5, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])  # 10 equal steps up to the peak
    assert rates[10] == 1
    assert rates[10:] == pytest.approx([(1 + math.cos(math.pi * step / 40)) / 2 for step in range(40)])
    half = checked({"epochs": 10, "warmup_epochs": 0.5, "milestones": (1,), "decay_rate": 0.1})
    (stage,) = stages(half)
    rates = [factor(half, stage, step // 5, step % 5, 5) for step in range(10)]
    assert rates == pytest.approx([1 / 3.5, 2 / 3.5, 3 / 3.5, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.1])
    config = checked({"epochs": 1, "sched": "cosine", "warmup_epochs": 5})  # of a recipe made shorter by a flag
    (stage,) = stages(config)
    rates = [factor(config, stage, 0, step, 10) for step in range(10)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])  # half of the run, and no more
    assert max(rates) == 1


def test_restarts_are_longer_each_time():
    config = checked(
        {"epochs": 7, "sched": "restarts", "restart_epochs": 1, "restart_factor": 2, "warmup_epochs": 0}
    )
    (stage,) = stages(config)
    rates = [factor(config, stage, step // 4, step % 4, 4) for step in range(28)]
    expected = [(1 + math.cos(math.pi * step / length)) / 2 for length in (4, 8, 16) for step in range(length)]
    assert rates == pytest.approx(expected)


def test_the_second_stage_has_half_the_rate_and_milestones_of_its_own_length():
    keys = {"two_stage": True, "activation_bits": 1, "epochs": 60, "milestones": (20, 40), "lr": 0.1, "lr_w": 0.03}
    first, second = stages(checked(keys | {"stage2_epochs": 30}))
    assert first == (32, 60, 0.1, 0.03, (20.0, 40.0))
    assert second == (1, 30, 0.05, pytest.approx(0.015), (10.0, 20.0))
    config = checked(keys | {"stage2_epochs": 15, "stage2_lr": 0.2, "decay_rate": 0.1, "warmup_epochs": 0})
    first, second = stages(config)
    assert second == (1, 15, 0.2, pytest.approx(0.06), (5.0, 10.0))
    assert [factor(config, second, epoch, 0, 7) for epoch in (0, 4, 5, 9, 10, 14)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert stages(checked(keys))[1] == (1, 60, 0.05, pytest.approx(0.015), (20.0, 40.0))


@pytest.mark.parametrize("key", list(Config.model_fields))
def test_every_key_is_a_flag_with_help(key):
    text = make_parser("train").format_help()
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
        make_parser("train").parse_args(["train", "--help"])
    assert f" --{key.replace('_', '-')}" in shown.getvalue()
    assert "train" in text
    assert Config.model_fields[key].description


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        ("epoch = 3", "unknown key 'epoch'; did you mean epochs?"),
        ("width = 0", "width = 0: use at least 1"),
        ('width = "wide"', "width = 'wide': use a whole number"),
        ("lr = -0.1", "lr = -0.1: use more than 0"),
        ("lr = nan", "lr = nan: use a finite number"),
        ('model = "wrn28"', "model = 'wrn28': use wrn22, wrn40, resnet18 or vgg16"),
        ('method = "magic"', "method = 'magic': use one of"),
        ("activation_bits = 8", "activation_bits=8: method 'pcnn' takes 1 or 32"),
        ("activation_bits = 9", "activation_bits = 9: use 1, 2, 3, 4, 5, 6, 7, 8 or 32"),
        ('method = "xnornet"', "method = 'xnornet': did you mean xnor? use one of pcnn, binaryconnect, bnn"),
        ('method = "bnn"\nlam = 1e-3', "lam=0.001: method 'bnn' does not take it; it takes activation_bits"),
        (
            'method = "float"\nkernel_rate = 10',
            "kernel_rate=10.0: method 'float' has no kernels that learn",
        ),
        ("kernel_rate = 0", "kernel_rate = 0: use more than 0, or authors"),
        ('kernel_rate = "glorot"', "kernel_rate = 'glorot': use a number, or authors"),
        ('method = "float"\nactivation_bits = 1', "activation_bits=1: method 'float' does not take it"),
        ('method = "bwn"\nprojections = 2', "projections=2: method 'bwn' does not take it"),
        ("two_stage = true", "two_stage: the second stage inserts signs"),
        ("stage2_lr = 0.1", "stage2_lr: there is a second stage only with two_stage"),
        ("width = 1000000", "width = 1000000: use at most 4096"),
        ("levels = 100000000000", "levels"),
        ("a = " + "[" * 5000, "not TOML"),
        ("milestones = [3, 2]", "milestones (3, 2): must rise"),
        ("width 3", "not TOML"),
        ("epochs = true", "epochs = true: not a matter of true or false"),
        ("data_dir = 3", "data_dir = 3: use text"),
        ('extends = "../../secret"', "extends = '../../secret'"),
        ("extends = 3", "extends = 3"),
        ("[stage]\nx = 1", "unknown key 'stage'"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path, recipe, what):
    file = tmp_path / "mine.toml"
    file.write_text(recipe)
    with pytest.raises(UserError) as caught:
        resolve(str(file), "paper", {})
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--recipe", "cifar10-pcn22"], "no such recipe; did you mean cifar10-pcnn22?"),
        (["--recipe", "zzz"], "no such recipe; onebit train --list-recipes names them"),
        (["--recipe", "missing.toml"], "no such file"),
        (["--epochs", "0"], "--epochs 0: use at least 1"),
        (["--data", "cifar11"], "--data cifar11: use digits, cifar10, cifar100, imagefolder or imagenet"),
        (["--lr", "fast"], "--lr fast: use a number"),
        (["--momentum", "1"], "--momentum 1: use less than 1"),
        (["--epoch", "3"], "there is no --epoch; did you mean --epochs?"),
        (["--resume"], "say what to train"),
        (["--resume", ""], "say what to train"),
        (["--activation-bits", "8"], "activation_bits=8: method 'pcnn' takes 1 or 32"),
        (["--activation-bits", "9"], "--activation-bits 9: use 1, 2, 3, 4, 5, 6, 7, 8 or 32"),
        (["--method", "abc", "--weight-bases", "0"], "--weight-bases 0: use at least 1"),
        (["--method", "mcn", "--sparsity", "0.5"], "sparsity=0.5: method 'mcn' does not take it"),
        (["--data", "cifar10"], "--data cifar10 needs a folder: --data-dir DIR"),
        (["--data", "imagenet", "--data-dir", "/nowhere"], "--data-dir /nowhere: no such folder"),
        (["--model", "vgg16", "--width", "2"], "vgg16 can't take images of 1 x 8 x 8"),
        (["--batch-size", "2000"], "--batch-size 2000: there are only 1214 training images"),
        (["--hold-out", "5000"], "--hold-out 5000: there are only 1348 training images"),
        (["--device", "quantum"], "--device quantum: here there is cpu"),
        (["--device", "meta"], "--device meta: here there is cpu"),
        (["--resume", ".", "--budget", "smoke"], "--budget smoke: a resumed run keeps its own"),
        (["--resume", "a", "--out", "b"], "--out b: a resumed run stays in its folder, a"),
        (["--model", "resnet18", "--width", "1", "-b", "1"], "--batch-size 1: too few images for batch norm"),
        (["--sync-bn"], "--sync-bn: PyTorch has it on GPUs only"),
        (["--resume", "/nowhere"], "/nowhere: holds no run"),
        (["--initial-checkpoint", "/nowhere"], "/nowhere: no such file"),
        (["--teacher", "/etc/hostname"], "/etc/hostname: not a whole weights file"),
        (["--model", "resnet18", "--dropout", "0.5"], "--dropout: resnet18 has none"),
        (["--model", "vgg16", "--shortcuts", "conv"], "--shortcuts conv: a choice of wrn22 and wrn40"),
        (["--method", "float", "--two-stage"], "two_stage: the second stage inserts signs"),
        ([], "say what to train: --recipe NAME"),
    ],
)
def test_a_wrong_command_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, words, what):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "train", *words)
    assert code == 2, err
    assert what in err.splitlines()[-1]
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.rglob("*.safetensors"))


def test_data_with_another_number_of_classes_than_the_checkpoint(tmp_path, capsys):
    image_folder(tmp_path / "three", classes=3)
    image_folder(tmp_path / "two", classes=2)
    words = ["--data", "imagefolder", "--image-size", "16", "--width", "1", "--epochs", "1", "-b", "4", "-j", "0"]
    run = str(tmp_path / "run")
    code, _, err = call(capsys, "train", *words, "--data-dir", str(tmp_path / "three"), "--out", run)
    assert code == 0, err
    two = ["--data-dir", str(tmp_path / "two")]
    for attempt in (
        ["train", *words, *two, "--initial-checkpoint", run, "--out", str(tmp_path / "other")],
        ["train", "--resume", run, *two],
        ["eval", run, *two],
        ["train", *words, *two, "--teacher", run, "--out", str(tmp_path / "other")],
        ["eval", run, "--data", "digits"],
    ):
        code, _, err = call(capsys, *attempt)
        assert code == 2, err
        assert "3" in err.splitlines()[-1]
        assert "classes" in err.splitlines()[-1]


def test_every_kind_of_flag_reaches_the_config():
    words = (
        "--activation-bits 1 --two-stage --milestones 3,5 --levels 4 --amp --no-decay-kernels --lr 0.5 -b 64 -j 1 "
        "--kernel-rate authors"
    )
    arguments = make_parser("train").parse_args(["train", *words.split()])
    config = resolve(None, "paper", config_flags(arguments))
    assert (config.activation_bits, config.two_stage, config.milestones, config.levels) == (1, True, (3, 5), 4)
    assert (config.amp, config.decay_kernels, config.lr, config.batch_size, config.workers) == (
        "bfloat16", False, 0.5, 64, 1,
    )  # fmt: skip
    assert config.kernel_rate == "authors"
    levels = make_parser("train").parse_args(["train", "--levels=-1,0,1", "--amp", "float16"])
    assert resolve(None, "paper", config_flags(levels)).levels == (-1, 0, 1)


def test_paths_are_kept_whole(tmp_path, monkeypatch):
    """A run finds its files again when it is resumed from another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = [
        "train",
        "--data-dir",
        "data",
        "--teacher",
        "~/runs/a",
        "--initial-checkpoint",
        "../b",
        "--device",
        "cpu",
    ]
    assert config_flags(make_parser("train").parse_args(words)) == {
        "data_dir": str(tmp_path / "data"),
        "teacher": str(tmp_path / "home" / "runs" / "a"),
        "initial_checkpoint": str(tmp_path.parent / "b"),
        "device": "cpu",
    }


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfwidth = 3", "width = 3 # ü".encode("latin1")])
def test_a_recipe_is_utf_8(tmp_path, content):
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    if content.startswith(b"\xef"):
        assert resolve(str(file), "paper", {}).width == 3
    else:
        with pytest.raises(UserError, match="not UTF-8"):
            resolve(str(file), "paper", {})


def test_recipes_are_listed(capsys):
    code, out, _ = call(capsys, "train", "--list-recipes")
    assert code == 0
    assert out.split() == recipe_names()
