"""A net that learns: one update at a time, and all that the next update depends on."""

from __future__ import annotations

import copy
import json
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onebit.backprop import discrete_backprop
from onebit.data.keyed import Stream, draw
from onebit.errors import NotFiniteError, UserError
from onebit.groups import parameter_groups
from onebit.training.config import Config
from onebit.training.processes import Processes
from onebit.training.schedule import Stage


class Outcome(NamedTuple):
    """Of an update: tensors, so that nobody waits for the device before the numbers are needed."""

    loss_s: Tensor
    loss_p: Tensor
    correct: Tensor


def _check_channels_last(net: nn.Module, device: torch.device) -> None:
    """PyTorch 2.13 dies (SIGSEGV) on the CPU in the backward pass of such a conv with 4 input channels."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and max(module.stride) > 1:  # noqa: SIM102
            if device.type == "cpu" and module.in_channels < 8:
                raise UserError("--channels-last: PyTorch can't do it for a net as narrow as this one on the CPU")


def _kernel_rate(config: Config) -> float | Literal["authors"]:
    """With Adam the authors' factors are 1.

    It divides by the size of the gradient, and so by a factor on it (XNOR-Net's). Glorot's factor is for weights
    that begin evenly over [-1, 1] (BinaryConnect's): relative to kernels that begin as a float conv's, which are
    smaller by that factor, a step of Adam is as long without it.
    """
    return 1.0 if config.kernel_rate == "authors" and config.opt == "adamw" else config.kernel_rate


class Learner:
    """The net, its optimizer, and what goes with them in one stage of a run."""

    def __init__(
        self, net: nn.Module, config: Config, stage: Stage, processes: Processes, teacher: nn.Module | None
    ) -> None:
        self.config, self.processes, self.teacher = config, processes, teacher
        device = processes.device
        if config.sync_bn:
            if device.type != "cuda":
                raise UserError("--sync-bn: PyTorch has it on GPUs only")
            net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        self.net = net.to(device)
        if config.channels_last:
            _check_channels_last(self.net, device)
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.wrapped: nn.Module = self.net
        if processes.count > 1:
            self.wrapped = DistributedDataParallel(self.net, [device] if device.type == "cuda" else None)
        groups = parameter_groups(
            self.net,
            stage.lr,
            stage.lr_w,
            config.weight_decay,
            kernel_rate=_kernel_rate(config),
            decay_kernels=config.decay_kernels,
            decay_norm_and_bias=config.decay_norm_and_bias,
        )
        for group in groups:
            group["peak_lr"] = group["lr"]
        self.optimizer: torch.optim.Optimizer
        if config.opt == "sgd":
            self.optimizer = torch.optim.SGD(
                groups, momentum=config.momentum, nesterov=config.nesterov and config.momentum > 0
            )
        else:
            self.optimizer = torch.optim.AdamW(groups)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "float16")
        self.backprop = discrete_backprop(self.wrapped, self.optimizer, scaler=self.scaler)
        self.ema = copy.deepcopy(self.net).requires_grad_(requires_grad=False) if config.model_ema_decay else None

    @property
    def evaluated(self) -> nn.Module:
        """The net to evaluate and to keep."""
        return self.net if self.ema is None else self.ema

    def rates(self) -> dict[str, float]:
        """The current learning rates: lr, of which kernels have a multiple, and lr_w of the projection matrices."""
        names = {"projections": "lr_w", "others": "lr"}  # a net that is trained has a stem and a classifier
        groups = {group["name"]: group for group in self.optimizer.param_groups}
        return {names[name]: float(group["lr"]) for name, group in groups.items() if name in names}

    def update(self, images: Tensor, labels: Tensor, lr_factor: float, epoch: int, step: int) -> Outcome:
        """One step of the optimizer. All randomness in it comes from seed, epoch, step and rank."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        number = step * self.processes.count + self.processes.rank
        torch.manual_seed(int(draw(Stream.STEP, self.config.seed, epoch, number)[0]) >> 1)
        dtype = getattr(torch, self.config.amp or "bfloat16")
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.processes.device.type, dtype, enabled=self.config.amp is not None):
            logits = self.wrapped(images)
            loss = self._loss(logits, images, labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.config.clip_grad:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema is not None:
            self._follow(self.ema)
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        return Outcome(loss.detach(), self.backprop.projection_loss.detach().to(loss.device), correct)

    def is_sound(self, images: Tensor) -> bool:
        """Whether the net makes numbers of these images; the last loss was of the weights before the update."""
        # sgn makes a +1 of an activation that is NaN, so outputs alone do not show that a weight is.
        if not all(tensor.isfinite().all() for tensor in self.net.state_dict().values()):
            return False
        self.net.eval()
        try:
            with torch.inference_mode():
                return bool(self.net(images).isfinite().all())
        except NotFiniteError:
            return False
        finally:
            self.net.train()

    def _loss(self, logits: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy; with a teacher, a weighted mean of it and of what the teacher would say."""
        hard = F.cross_entropy(logits, labels, label_smoothing=self.config.smoothing)
        if self.teacher is None:
            return hard
        with torch.no_grad():
            taught = self.teacher(images)
        T, weight = self.config.distill_temperature, self.config.distill_weight
        soft = F.kl_div(
            F.log_softmax(logits / T, 1), F.log_softmax(taught / T, 1), reduction="batchmean", log_target=True
        )
        return (1 - weight) * hard + weight * T**2 * soft  # T**2: the gradient's size does not depend on T

    @torch.no_grad()
    def _follow(self, ema: nn.Module) -> None:
        for mean, now in zip(ema.parameters(), self.net.parameters(), strict=True):
            mean.lerp_(now, 1 - self.config.model_ema_decay)
        for copied, buffer in zip(ema.buffers(), self.net.buffers(), strict=True):
            copied.copy_(buffer)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain numbers that, with the evaluated net's weights, let the run go on from here."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.net.named_parameters():
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{name}/{kind}"] = value
        if self.ema is not None:
            tensors |= {f"net/{name}": tensor for name, tensor in self.net.state_dict().items()}
        return tensors, {"scaler": json.loads(json.dumps(self.scaler.state_dict()))}

    def load_state(
        self, weights: dict[str, Tensor], tensors: dict[str, Tensor], numbers: dict[str, Any], *, has_learned: bool
    ) -> None:
        """Be as the learner was whose state this is; if it has made updates, its optimizer has a memory of them."""
        self._check_state(tensors, has_learned)
        self.evaluated.load_state_dict(weights)
        if self.ema is not None:
            self.net.load_state_dict(
                {n.removeprefix("net/"): t for n, t in tensors.items() if n.startswith("net/")}
            )
        parameters = dict(self.net.named_parameters())
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, owner, kind = name.split("/")
                parameter = parameters[owner]
                # AdamW counts its steps in a tensor on the CPU; the others go where the parameter is.
                place = tensor if tensor.ndim == 0 else tensor.to(parameter.device)
                self.optimizer.state[parameter][kind] = place
        try:
            if numbers.get("scaler"):
                self.scaler.load_state_dict(numbers["scaler"])
        except (KeyError, TypeError, RuntimeError):
            raise UserError("the state does not fit the run: the scale of its loss is not one") from None

    def _check_state(self, tensors: dict[str, Tensor], has_learned: bool) -> None:
        shapes = {name: parameter.shape for name, parameter in self.net.named_parameters()}
        remembered = set()
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                owner = name.split("/")[1]
                if (
                    name.count("/") != 2
                    or owner not in shapes
                    or tensor.shape not in {shapes[owner], torch.Size(())}
                ):
                    raise UserError(f"the state does not fit the net: {name}")
                remembered.add(owner)
        remembers = self.config.opt == "adamw" or self.config.momentum > 0
        if has_learned and remembers and remembered != shapes.keys():
            raise UserError("the state does not fit the net: the optimizer's memory is missing")
        raw = {name for name in tensors if name.startswith("net/")}
        if self.ema is not None and raw != {f"net/{name}" for name in self.net.state_dict()}:
            raise UserError("the state does not fit the net: the weights beside their mean are missing")
