"""Every table and figure: which runs it takes, in each budget.

paper   the paper's protocol: 200 epochs on CIFAR, 60 on ImageNet, all training images
cpu     hours on two cores: 5 epochs (30 for the nets that are kept), 16 channels
smoke   a minute: does it work; on the digits of the package
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from onebit import models
from onebit.layers import ProjectionConv2d
from onebit.methods import METHODS, authors_of, kernel_rates_of
from onebit.reproduction import published
from onebit.reproduction.plans import Entry, Experiment, Setting, Target, precision
from onebit.training.config import activation_bits

RATES = (0.1, 0.3, 1.0)  # what every method may choose from, on held-out images
KERNEL_RATES: tuple[float | Literal["authors"], ...] = (1.0, 10.0, "authors")  # and of its kernels, times that
HELD_OUT = 5000
BEST_RATE = 0.3  # of PCNN, among RATES (table-methods)
WIDTHS = {"cpu": 16, "smoke": 4}  # the paper's i
SMOKE = {"data": "digits", "epochs": 1, "sched": "cosine", "warmup_epochs": 0.1, "batch_size": 32,
         "limit_images": 160, "hold_out": 32, "bn_batches": 2, "channels_last": False}  # fmt: skip
PAPER_RATES = (0.1,)
# None is held out, since nothing is chosen; norms stay as training left them; Fig. 4 follows the test images.
PAPER = {"hold_out": 0, "bn_batches": 0, "test_every": 1}


def _short(setting: Setting) -> dict[str, Any]:
    """What a budget changes of a recipe for CIFAR. A cosine suits any length; steps are made for 200 epochs."""
    if setting.budget == "paper":
        return PAPER
    if setting.budget == "smoke":
        return SMOKE
    return {"epochs": 5, "sched": "cosine", "warmup_epochs": 0.5, "hold_out": HELD_OUT, **precision()}


def _long(setting: Setting) -> dict[str, Any]:
    """Of nets that are kept: more epochs, and every training image."""
    if setting.budget == "smoke":
        return SMOKE
    more = {"epochs": 30, "warmup_epochs": 1.0} if setting.budget == "cpu" else {}
    return _short(setting) | more | {"hold_out": 0, "test_every": 1}


def _cifar(
    setting: Setting, budget_keys: dict[str, Any], rates: Sequence[float], seeds: Sequence[int], **keys: Any
) -> tuple[Experiment, ...]:
    """A run on CIFAR-10 for each learning rate and seed; W learns a tenth as fast."""
    return tuple(
        setting.plan("cifar10-pcnn22", budget_keys, lr=lr, lr_w=lr / 10, seed=seed, **keys)
        for seed in seeds
        for lr in rates
    )


def _rates(setting: Setting) -> tuple[float, ...]:
    """What a method may choose from."""
    return PAPER_RATES if setting.budget == "smoke" else RATES


def kernel_keys(setting: Setting, method: str) -> list[dict[str, Any]]:
    """And for its kernels, with weight decay as the method's authors have it.

    Earlier runs of the budget cpu had the recipe's decay at rate 1, for every method; they stay a choice there.
    """
    asked = KERNEL_RATES[:1] if setting.budget == "smoke" else KERNEL_RATES
    keys: list[dict[str, Any]] = [
        {} if rate == 1 else {"kernel_rate": rate} for rate in kernel_rates_of(method, asked)
    ]
    if setting.budget == "cpu" and not authors_of(method).decays_latents:
        keys.append({"decay_kernels": True})
    return keys


def _rate(setting: Setting) -> tuple[float, ...]:
    """The rate of runs of PCNN alone."""
    return (BEST_RATE,) if setting.budget == "cpu" else PAPER_RATES


def table_lambda(setting: Setting) -> Target:
    """Table 2: lam of PCNN-22 and PCNN-40. The paper's are J = 4, which two cores would take days for."""
    is_paper = setting.budget == "paper"
    J = 4 if is_paper else 1
    rates = _rate(setting)
    width = WIDTHS.get(setting.budget, 16)
    entries = []
    two_seeds = setting.seeds_or(*((0,) if is_paper else (0, 1)))
    for model, seeds in (("wrn22", two_seeds), ("wrn40", setting.seeds_or(0))):
        for lam, top1 in zip(published.LAMBDAS, published.LAMBDA_TOP1[model], strict=True):
            runs = _cifar(
                setting, _short(setting), rates, seeds, model=model, width=width, projections=J, **_lam(lam)
            )
            entries.append(Entry((f"PCNN-{model[3:]}", f"{lam:g}"), runs, top1))
    keys = {"width": width, "projections": J}
    runs = _cifar(setting, _short(setting), rates, two_seeds, decay_kernels=False, **keys)
    entries.append(Entry(("PCNN-22, no weight decay on C", "0.0001"), runs))
    runs = _cifar(setting, _short(setting), rates, setting.seeds_or(0), eta=0.0, **keys)
    entries.append(Entry(("PCNN-22, eta = 0", "0.0001"), runs))
    if not is_paper:  # to see what the loss does when it is strong enough for few epochs
        for lam in (1e-2, 1e-1):
            runs = _cifar(setting, _short(setting), rates, setting.seeds_or(0), lam=lam, **keys)
            entries.append(Entry(("PCNN-22", f"{lam:g}"), runs))
    notes = ("the paper's are J = 4; ours J = 1 in this budget",) if not is_paper else ()
    return Target("table-lambda", "Table 2", "accuracy over lambda", ("net", "lambda"), tuple(entries), notes)


def _lam(lam: float) -> dict[str, Any]:
    """The default is not written down, so that the run is the one of other tables, too."""
    return {} if lam == 1e-4 else {"lam": lam}


def table_cifar(setting: Setting) -> Target:
    """Table 3: the methods on CIFAR-10 and CIFAR-100."""
    entries = []
    for row in published.CIFAR:
        for data, top1 in (("cifar10", row.cifar10), ("cifar100", row.cifar100)):
            runs: tuple[Experiment, ...] = ()
            if setting.budget == "paper" and top1 is not None:
                keys = {"data": data, "method": row.method, "width": row.width, "projections": row.projections}
                runs = (
                    _cifar(setting, PAPER, PAPER_RATES, setting.seeds_or(0), **keys)
                    if row.method in {"float", "pcnn"}
                    else _chosen(setting, row.method, data=data, width=row.width)
                )
            elif data == "cifar10" and (row.width == 16 or row.method not in {"float", "pcnn"}):
                runs = _small_cifar(setting, row)
            if top1 is not None:
                entries.append(Entry((row.model, row.parameters, _kernel_weights(row), data), runs, top1))
    notes = ["#Para., ours: the learned kernels of the 1-bit layers, counted, with the paper's i and J"]
    notes += ["five of the paper's rivals have larger nets, apparently those of their own papers"]
    if setting.budget == "paper":
        notes.append("ours: rivals in WRN-22, i = 64, with the schedule of PCNN")
        notes.append(
            f"float and PCNN: the paper's learning rate, {PAPER_RATES[0]:g}, and all training images. Rivals: "
            f"{_choice(setting)}. {HELD_OUT:,} of their training images are held out for it; in table-methods all "
            f"have the same choice and the same images"
        )
    else:
        notes.append(f"ours: all in WRN-22, i = {WIDTHS[setting.budget]}; the rest is not in this budget")
    heads = ("model", "#Para., paper", "#Para., ours", "data")
    return Target("table-cifar", "Table 3", "accuracy on CIFAR", heads, tuple(entries), tuple(notes))


def _kernel_weights(row: published.CifarRow) -> str:
    """#Para., counted: learned kernels of the 1-bit layers (in float, of the same layers). '': of another net."""
    if row.method not in {"float", "pcnn", "mcdonnell"}:
        return ""
    with torch.device("meta"):
        net = models.wrn22(row.width, row.projections)
    layers = [module for module in net.modules() if isinstance(module, ProjectionConv2d)]
    return f"{sum(layer.C.numel() for layer in layers) / 1e6:.2f}M"


def _small_cifar(setting: Setting, row: published.CifarRow) -> tuple[Experiment, ...]:
    width = WIDTHS[setting.budget]
    if row.projections > 1:
        if setting.budget == "cpu" and row.projections > 2:
            return ()  # tensors of 64 channels: hours for each run
        seeds, keys = setting.seeds_or(0), {"width": width, "projections": row.projections}
        return _cifar(setting, _short(setting), _rate(setting), seeds, **keys)
    return _method(setting, row.method)


def _method(setting: Setting, method: str) -> tuple[Experiment, ...]:
    """A method on equal terms: the same net, data and schedule, and the same choice of learning rates."""
    return _chosen(setting, method, width=WIDTHS.get(setting.budget, 64))


def _chosen(setting: Setting, method: str, **keys: Any) -> tuple[Experiment, ...]:
    """Runs of which the best on held-out images counts."""
    held = {"hold_out": HELD_OUT} if setting.budget == "paper" else {}
    return tuple(
        run
        for own in kernel_keys(setting, method)
        for run in _cifar(
            setting, _short(setting) | held, _rates(setting), setting.seeds_or(0), method=method, **keys, **own
        )
    )


def _choice(setting: Setting) -> str:
    """The choice in words."""
    rates = ", ".join(f"{rate:g}" for rate in _rates(setting))
    if setting.budget == "smoke":
        return f"learning rate {rates}"
    earlier = " (and, at 1, with it for all)" if setting.budget == "cpu" else ""
    return (
        f"the learning rate that is best on held-out images, of {rates}, with that of the kernels "
        f"{rate_words()}{earlier}"
    )


def rate_words() -> str:
    """KERNEL_RATES in words."""
    times = ", ".join(f"{rate:g}" for rate in KERNEL_RATES if isinstance(rate, float))
    return (
        f"{times} times as high, or as many times as the method's authors have it; weight decay on kernels only "
        f"where the authors have it"
    )


def table_methods(setting: Setting) -> Target:
    """Not in the paper: every method that it compares with, on equal terms."""
    entries = []
    for method in METHODS:
        runs = _method(setting, method)
        weights = "32" if method == "float" else "2" if method == "lbcnn" else "1"
        entries.append(Entry((method, f"{weights}/{activation_bits(runs[0].config)}"), runs))
    notes = (f"for each method {_choice(setting)}",)
    title = f"every method in the same WRN-22, i = {WIDTHS.get(setting.budget, 64)}"
    return Target("table-methods", "", title, ("method", "W/A"), tuple(entries), notes)


def table_projections(setting: Setting) -> Target:
    """Not in the paper: J with tensors and with kernels of one width; what enters of W, and how it begins."""
    width = WIDTHS.get(setting.budget, 16)
    rates = _rate(setting)
    short, seeds = _short(setting), setting.seeds_or(0)

    def entry(width: int, J: int, **options: str) -> Entry:
        keys: dict[str, Any] = {"width": width, "projections": J, **options}
        forward_w = options.get("forward_w", "elementwise")
        begins = options.get("w_init", "signs" if J > 1 and forward_w == "elementwise" else "ones")
        where = (str(width * J), str(width), str(J), forward_w, begins)
        return Entry(where, _cifar(setting, short, rates, seeds, **keys))

    entries = [entry(width // J, J) for J in (1, 2, 4)]
    entries += [entry(width // J, J, forward_w="mean") for J in (1, 2, 4)]
    entries += [entry(width // 2, J) for J in (1, 4)]  # J = 2 is above: tensors of `width` channels
    entries += [entry(width // J, J, w_init="normal") for J in (1, 2, 4)]  # Algorithm 1 as it is written
    heads = ("tensors", "kernels (i)", "J", "forward_w", "w_init")
    return Target("table-projections", "", "J projections", heads, tuple(entries))


def table_best(setting: Setting) -> Target:
    """Not in the paper: the nets that are kept, W1A32 and W1A1 beside float, with the best of our options."""
    keys = {"width": WIDTHS.get(setting.budget, 16)}
    long, (rate,) = _long(setting), _rate(setting)
    in_float, pcnn, signs = [], [], []
    for seed in setting.seeds_or(0):
        own = {**keys, "seed": seed}
        teacher = setting.plan("cifar10-pcnn22", long, lr=0.1, lr_w=0.01, method="float", **own)
        in_float.append(teacher)
        pcnn.append(setting.plan("cifar10-pcnn22", long, lr=rate, lr_w=rate / 10, **own))
        stages = long | _two_stages(setting)
        signs.append(setting.plan(
            "cifar10-pcnn22", stages, teacher, lr=rate, lr_w=rate / 10, activation_bits=1, shortcuts="conv",
            teacher=setting.run_folder(teacher.name), **own,
        ))  # fmt: skip
    paper = {row.model: row.cifar10 for row in published.CIFAR}
    entries = (
        Entry(("float", "32/32"), tuple(in_float), paper["WRN (i = 16)"]),
        Entry(("PCNN-22, J = 1", "1/32"), tuple(pcnn), paper["PCNN (i = 16, J = 1)"]),
        Entry(
            ("PCNN-22, J = 1, two stages, shortcuts round every conv, distilled from float", "1/1"), tuple(signs)
        ),
    )
    notes = (
        []
        if setting.budget == "smoke"
        else ["all training images, none held out: nothing was chosen by test images"]
    )
    if long.get("bn_batches") != 0:
        notes.append("norms are estimated anew with the final kernels, for float, too")
    return Target("table-best", "", "the nets of the zoo", ("net", "W/A"), entries, tuple(notes))


def _two_stages(setting: Setting) -> dict[str, Any]:
    """W1A32 first, then with signs; most of a short run is for the second."""
    return {"two_stage": True, **({"epochs": 10, "stage2_epochs": 25} if setting.budget == "cpu" else {})}


def table_w1a8(setting: Setting) -> Target:
    """Not in the paper: what 8 bits cost, of inputs and of the layers that are not 1-bit."""
    _, pcnn, signs = table_best(setting).entries
    entries = (Entry((pcnn.where[0],), pcnn.runs), Entry((signs.where[0],), signs.runs))
    return Target("table-w1a8", "", "what 8 bits cost", ("net",), entries)


def figure_lambda(setting: Setting) -> Target:
    """Fig. 2: how the kernels of the first layer are spread, for each lam."""
    table = table_lambda(setting)
    chosen = [entry for entry in table.entries if entry.where[0] == "PCNN-22"]
    chosen.sort(key=lambda entry: -float(entry.where[1]))
    entries = tuple(
        Entry((f"lambda = {entry.where[1]}" + ("" if entry.top1 else " (not in the paper)"),), entry.runs[:1])
        for entry in chosen
    )
    return Target("figure-lambda", "Fig. 2", "kernels of the first 1-bit layer over lambda", ("lambda",), entries)


def figure_epoch(setting: Setting) -> Target:
    """Fig. 3: how they are spread as training goes on."""
    is_paper = setting.budget == "paper"
    run = _of_lambda(setting, "0.0001") if is_paper else table_best(setting).entries[1].runs[0]
    title = "kernels of the first 1-bit layer over the epochs, lambda = 1e-4"
    return Target("figure-epoch", "Fig. 3", title, ("net",), (Entry(("PCNN-22",), (run,)),))


def _of_lambda(setting: Setting, lam: str) -> Experiment:
    (entry,) = [e for e in table_lambda(setting).entries if e.where == ("PCNN-22", lam)]
    return entry.runs[0]


def figure_losscurve(setting: Setting) -> Target:
    """Fig. 4: losses with and without the projection loss."""
    chosen = (("lambda = 0", "0"), ("lambda = 1e-4", "0.0001"))
    entries = tuple(Entry((label,), (_of_lambda(setting, lam),)) for label, lam in chosen)
    return Target("figure-losscurve", "Fig. 4", "loss with and without the projection loss", ("net",), entries)


def figure_diversity(setting: Setting) -> Target:
    """Fig. 5: four kernels of J = 4, and what they see."""
    if setting.budget == "paper":
        entry = next(e for e in table_lambda(setting).entries if e.where == ("PCNN-22", "0.0001"))
    else:
        entry = next(e for e in table_projections(setting).entries if e.where[2:] == ("4", "elementwise", "signs"))
    width = entry.runs[0].config.width
    title = f"kernels and feature maps of J = 4 projections, i = {width}"
    return Target("figure-diversity", "Fig. 5", title, ("net",), (Entry((f"i = {width}, J = 4",), entry.runs[:1]),))


Planner = Callable[[Setting], Target]
