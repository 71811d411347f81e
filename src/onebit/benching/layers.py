"""What each step of the engine takes, and what was not accelerated in it, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from onebit.engine import Engine
from onebit.machine import Machine
from onebit.native import ISAS, native
from onebit.summary import summarize

PLAIN_C = "scalar"
_AS_FLOATS = (
    "run as float kernels do; with 1-bit inputs (W1A1), or exported with --activation-bits 8 (W1A8), they would not"
)


class Layer(NamedTuple):
    """A step of the engine.

    kernel, isa   as in `Engine.info()`
    precision     such as W1A1: bits of its weights and of its input; of what has no weights ''
    input_kind    of what it reads
    share         of the time of all steps
    macs          multiply-adds for one image
    """

    name: str
    operations: list[str]
    kernel: str
    isa: str
    precision: str
    input_kind: str
    ms: float
    share: float
    macs: int

    @property
    def gmacs_per_second(self) -> float | None:
        """Billions of multiply-adds a second, of what has some."""
        return self.macs / self.ms / 1e6 if self.macs and self.ms else None

    @property
    def runs(self) -> str:
        """Kernel and instruction set, for people."""
        return f"{self.kernel}, {'plain C' if self.isa == PLAIN_C else self.isa}"


class Limit(NamedTuple):
    """Something that was not accelerated: why, which layers, and their share of the time; None: not of layers."""

    why: str
    layers: tuple[str, ...] = ()
    share: float | None = None


def layers_of(engine: Engine, seconds: list[float]) -> list[Layer]:
    """The steps with their times."""
    model, total = engine.model, sum(seconds) or 1.0
    nodes = {row.name: row for row in summarize(model, 0).rows}
    made = []
    for step, taken in zip(engine.info()["steps"], seconds, strict=True):
        node = nodes[step["name"]]
        made.append(
            Layer(
                **step,
                precision=node.precision,
                input_kind=model.values[node.inputs[0]].kind,
                ms=1e3 * taken,
                share=taken / total,
                macs=node.one_bit_macs + node.float_macs,
            )
        )
    return made


def limits_of(engine: Engine, layers: list[Layer], why_isa: str, machine: Machine) -> list[Limit]:
    """What was not accelerated here, the net first, then the machine."""
    found = [_limit(why, filter(holds, layers)) for why, holds in _of_nets()]
    if engine.isa == PLAIN_C:
        found.append(_limit(_why_plain(why_isa, machine), layers))
    else:
        found += _without_kernel(layers, engine.isa)
    made = [limit for limit in found if limit.layers]
    if engine.isa == "avx2" and "avx512f" in machine.instructions:
        made.append(Limit(_why_no_avx512(why_isa)))
    if machine.cores > 1:
        made.append(
            Limit(f"{machine.cores} cores: a call uses one, unless onebit.load(path, threads=N) asks for more")
        )
    return made


def _why_no_avx512(why_isa: str) -> str:
    """Of a net with AVX2 kernels on a CPU that has more."""
    if native().has_isa("avx512"):
        return f"AVX-512, which this machine can run: AVX2 kernels run ({why_isa})"
    return "AVX-512: this CPU has it without VPOPCNTDQ, which onebit's kernels need; other programs may use it"


def _limit(why: str, layers: Iterable[Layer]) -> Limit:
    layers = list(layers)
    return Limit(why, tuple(layer.name for layer in layers), sum(layer.share for layer in layers))


def _of_nets() -> list[tuple[str, Callable[[Layer], bool]]]:
    """What is the net's own: its weights and inputs."""

    def is_binary(layer: Layer) -> bool:
        return layer.precision.startswith("W1A")

    return [
        (
            "weights kept in float",
            lambda layer: bool(layer.precision) and not is_binary(layer) and layer.input_kind == "float",
        ),
        (
            f"1-bit kernels with float inputs (W1A32) {_AS_FLOATS}",
            lambda layer: is_binary(layer) and layer.input_kind == "float",
        ),
        (
            "1-bit convolutions in groups: the channels of a group are taken bit by bit",
            lambda layer: layer.kernel.startswith("bits in groups"),
        ),
    ]


def _why_plain(why_isa: str, machine: Machine) -> str:
    faster = [isa for isa in ISAS if isa != PLAIN_C and native().has_isa(isa)]
    if faster:
        return f"plain C runs ({why_isa}); this machine can run {', '.join(faster)}"
    names = ", ".join(isa for isa in ISAS if isa != PLAIN_C)
    return f"plain C runs: there are kernels for {names}, which this machine ({machine.system}) can't run"


def _without_kernel(layers: list[Layer], isa: str) -> list[Limit]:
    """Steps in plain C of a net whose others are not, by reason."""
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.isa == PLAIN_C:
            groups.setdefault(_why_no_kernel(layer), []).append(layer)
    found = []
    for why, group in groups.items():
        operations = ", ".join(dict.fromkeys(layer.operations[0] for layer in group))
        found.append(_limit(f"{why} ({operations}): no {isa} kernel, plain C runs", group))
    return found


def _why_no_kernel(layer: Layer) -> str:
    if layer.kernel == "wide sums":
        return "sums that are too large for kernels"
    if layer.kernel == "copy":
        return "numbers that only move"
    if layer.kernel == "number by number":
        return "functions of single numbers"
    what = {"bits": "of bits", "sums": "of sums"}.get(layer.input_kind, "of few channels")
    return f"{layer.kernel} {what}"
