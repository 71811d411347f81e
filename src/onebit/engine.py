"""The native engine: runs a packed net from bits, at the speed of bits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.compiling import compile_net, largest_pair
from onebit.fusing import Step
from onebit.machine import cores
from onebit.modelfile import Model
from onebit.native import Threads, chosen_isa, usable_threads
from onebit.runnable import Floats, Runnable, checked_input


class Engine(Runnable):
    """Runs a model from bits, batch after batch: `logits = engine(images)`. Safe to call from several threads."""

    engine = "native"

    def __init__(self, model: Model, isa: str = "auto", threads: Threads = 1) -> None:
        super().__init__(model)
        self._wanted_isa = isa
        self.isa = chosen_isa(isa)
        self.threads, remark = usable_threads(threads)
        if remark:
            warnings.warn(remark, stacklevel=2)
        self._net, self._steps, self._native_steps = compile_net(model, self.isa, self.threads)

    def __call__(self, x: Floats) -> Floats:
        """Images (N, channels, height, width), float32, to the outputs of the net.

        Images that lie in memory as (N, height, width, channels), such as `pictures.transpose(0, 3, 1, 2)`, are
        taken as they lie, and outputs that are images lie so, too. Other layouts than these two are copied first.
        """
        return self._run(x, None)

    def step_seconds(self, x: Floats) -> list[float]:
        """The seconds that each step of `info()["steps"]` takes for all images of this batch together.

        Images go one after another here, each shared by all threads.
        """
        seconds = np.zeros(self._net.steps)
        self._run(x, seconds)
        parts = np.split(seconds, np.cumsum(self._native_steps)[:-1])
        return [float(part.sum()) for part in parts]

    def __reduce__(self) -> tuple[Any, ...]:
        """So that nets can be copied, and sent to other processes: the model goes, and is made ready anew."""
        return _restored, (self.model, self._wanted_isa, self.threads)

    def _run(self, x: Floats, seconds: NDArray[np.float64] | None) -> Floats:
        images, shape = checked_input(x, self.model), self.output_shape
        if images.flags.c_contiguous and images.flags.aligned:
            outputs = np.empty((len(images), *shape), np.float32)
            self._net.run(images, False, outputs, seconds)
            return outputs
        by_pixels = images.transpose(0, 2, 3, 1)
        if not (by_pixels.flags.c_contiguous and images.flags.aligned):
            return self._run(np.array(images, order="C"), seconds)
        channels, *sides = shape
        outputs = np.empty((len(images), *sides, channels), np.float32)
        self._net.run(by_pixels, True, outputs, seconds)
        return outputs.transpose(0, 3, 1, 2) if sides else outputs

    def info(self) -> dict[str, Any]:
        """What runs here: the kernels' instruction set, the steps with what each is made of, and bytes of memory.

        kernel, isa       of a step: its inner loop, in words, and the instruction set of that; 'scalar' where the
                          net's has nothing for it
        weight_bytes      of tensors, as the kernels have them
        workspace_bytes   for the values of one image; of images that run at the same time, each has its own
        largest_pair_bytes   of the two largest values of the net that are needed at one time: what an engine that
                             keeps every value whole could not do without
        """
        firsts = np.cumsum([0, *self._native_steps[:-1]])  # parts of one step are all of one kind
        kernels = [self._net.step_kernel(int(first)) for first in firsts]
        return {
            "engine": self.engine,
            "isa": self.isa,
            "threads": self.threads,
            "nodes": len(self.model.graph.nodes),
            "steps": [
                {"name": name_of(step), "operations": operations_of(step), "kernel": kernel, "isa": isa}
                for step, (kernel, isa) in zip(self._steps, kernels, strict=True)
            ],
            "weight_bytes": self._net.weight_bytes,
            "workspace_bytes": self._net.workspace_bytes(self.threads),
            "largest_pair_bytes": largest_pair(self.model),
        }


def _restored(model: Model, isa: str, threads: int) -> Engine:
    """A copy, perhaps in a process that may use fewer cores."""
    return Engine(model, isa, min(threads, cores()))


def name_of(step: Step) -> str:
    """Of the first node of a step."""
    return (step.maker or step).node.name


def operations_of(step: Step) -> list[str]:
    """The operations that became one step, in order."""
    before = operations_of(step.maker) if step.maker else []
    nodes = [step.node, *(node for node in step.taken if node is not step.node)]
    return before + [node.op for node in nodes]
