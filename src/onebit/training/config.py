"""What a run is made of: every key of a recipe and every flag of `onebit train`, checked.

A section of keys a class. A key `batch_size` is the flag `--batch-size`; the description is its help.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=4096)]
Levels = Annotated[int, Field(ge=2, le=65536)]
Bases = Annotated[int, Field(ge=1, le=64)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Positive | Literal["authors"]
Share = Annotated[float, Field(ge=0, lt=1)]


def _numbers(value: Any) -> Any:
    """'60,120,160' as it comes from a command line; a single number stays one."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return parts[0] if len(parts) == 1 and "," not in value else parts
    return value


def _number(value: Any) -> Any:
    """A choice of numbers knows no text, and a command line nothing else."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _known_method(method: str) -> str:
    from onebit.methods import METHODS, nearest_method

    if method not in METHODS:
        near = nearest_method(method)
        hint = f"did you mean {near}? " if near else ""
        raise ValueError(f"{hint}use one of {', '.join(METHODS)}")
    return method


# As in `onebit.methods.METHODS`, which needs torch.
METHOD_NAMES = (
    "pcnn", "binaryconnect", "bnn", "lbcnn", "bwn", "xnor", "mcdonnell", "dorefa", "abc", "bireal", "mcn", "float",
)  # fmt: skip
OPTIONS = (
    "lam", "eta", "forward_w", "w_init", "scale", "levels", "scale_map", "weight_bases", "activation_bases",
    "theta", "sparsity", "num_intermediate", "magnitude_aware",
)  # fmt: skip


class Net(BaseModel):
    """the net"""

    model: Literal["wrn22", "wrn40", "resnet18", "vgg16"] = Field("wrn22", description="which net")
    width: Width | None = Field(
        None, description="the paper's i: channels of the first stage of kernels (16; resnet18, vgg16: 64)"
    )
    method: Annotated[str, AfterValidator(_known_method)] = Field(
        "pcnn",
        description=f"how kernels become 1 bit: {', '.join(METHOD_NAMES[:-1])}; or float",
    )
    projections: Width = Field(1, description="the paper's J; of mcn, its K")
    activation_bits: Annotated[Literal[1, 2, 3, 4, 5, 6, 7, 8, 32] | None, BeforeValidator(_number)] = Field(
        None, description="32: floats; 1: convolutions take the sign of their input (the method's own; pcnn: 32)"
    )
    dropout: Share | None = Field(None, description="the net's own (WRN: 0.3 from width 64 on, VGG16: 0.5)")
    shortcuts: Literal["block", "conv"] | None = Field(
        None, description="of WRN: round every block, or round every conv as in a Bi-Real net (block; bireal: conv)"
    )
    form: Literal["bireal", "own"] | None = Field(
        None, description="of resnet18: bireal, as PCNN's for every method (default); own, as the authors have it"
    )
    lam: NotNegative | None = Field(
        None, description="pcnn: weight of the projection loss (1e-4). Leave it: much more does harm"
    )
    eta: NotNegative | None = Field(
        None, description="pcnn: eta of the projection loss (the current learning rate); 0: without eta delta"
    )
    forward_w: Literal["elementwise", "mean"] | None = Field(
        None, description="pcnn: what the forward pass takes of W"
    )
    w_init: Literal["ones", "signs", "normal"] | None = Field(
        None, description="pcnn: how W begins (ones; for J > 1 random signs). Leave it: for studies of W"
    )
    scale: Literal["layer", "kernel"] | None = Field(
        None, description="pcnn: over what the scale of a kernel is taken"
    )
    levels: Annotated[Levels | tuple[float, ...] | None, BeforeValidator(_numbers)] = Field(
        None, description="pcnn: number of quantisation levels (2), or the levels"
    )
    scale_map: bool | None = Field(None, description="xnor: scale outputs by the size of their inputs")
    weight_bases: Bases | None = Field(None, description="abc: 1-bit weights that a weight is made of (1)")
    activation_bases: Bases | None = Field(
        None, description="abc: 1-bit activations that an activation is made of (1)"
    )
    theta: NotNegative | None = Field(None, description="mcn: weight of its loss (1e-4)")
    sparsity: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="lbcnn: share of the fixed weights that are not 0 (0.5)"
    )
    num_intermediate: Width | None = Field(
        None, description="lbcnn: fixed filters of a block (4 times the outputs)"
    )
    magnitude_aware: bool | None = Field(
        None, description="bireal: multiply the kernels' gradient by their size, as in its paper (true)"
    )


class Data(BaseModel):
    """the data"""

    data: Literal["digits", "cifar10", "cifar100", "imagefolder", "imagenet"] = Field(
        "digits", description="which data; digits come with the package"
    )
    data_dir: str | None = Field(None, description="the folder that holds it ($ONEBIT_DATA)")
    image_size: Count = Field(224, description="of imagefolder and imagenet")
    hold_out: Natural | Literal["auto"] = Field(
        "auto",
        description="training images kept apart to choose the best epoch; 0: none; auto: 5000, at most a tenth",
    )
    limit_images: Natural = Field(0, description="train and test on this many images only; 0: all")
    on_bad_image: Literal["error", "skip"] = Field("error", description="what to do with a file that is no image")
    workers: Natural = Field(
        2, description="processes that decode images (imagefolder, imagenet); at most one a core"
    )


class Schedule(BaseModel):
    """the schedule"""

    epochs: Count = Field(200, description="passes over the training images")
    batch_size: Count = Field(128, description="images an update takes, over all processes")
    opt: Literal["sgd", "adamw"] = Field("sgd", description="the optimizer")
    lr: Positive = Field(0.1, description="learning rate")
    lr_w: NotNegative | None = Field(None, description="learning rate of the projection matrices (lr / 10)")
    momentum: Share = Field(0.9, description="of sgd")
    nesterov: bool = Field(True, description="sgd's momentum is Nesterov's")
    weight_decay: NotNegative = Field(5e-4, description="not for projection matrices")
    kernel_rate: Rate = Field(
        1.0, description="by what the kernels' learning rate is multiplied; authors: what the method's authors use"
    )
    decay_kernels: bool | None = Field(
        None, description="weight decay on 1-bit layers' kernels (as the method's authors have it)"
    )
    decay_norm_and_bias: bool = Field(True, description="weight decay on norms and biases")
    sched: Literal["step", "cosine", "restarts"] = Field(
        "step", description="how the learning rate falls; restarts: in cosines, each begins at the top again"
    )
    milestones: Annotated[tuple[Count, ...], BeforeValidator(lambda v: _as_list(_numbers(v)))] = Field(
        (60, 120, 160), description="epochs after which sched step lowers it, with commas"
    )
    decay_rate: Positive = Field(0.2, description="by what sched step multiplies it")
    restart_epochs: Count = Field(2, description="epochs of the first cosine of sched restarts")
    restart_factor: Count = Field(2, description="by what each further cosine of sched restarts is longer")
    warmup_epochs: NotNegative = Field(0.0, description="epochs in which it rises from 0; at most half of them")
    two_stage: bool = Field(
        False, description="with --activation-bits 1: train with 32 first, then insert the signs and train on"
    )
    stage2_epochs: Count | None = Field(None, description="of the second stage (epochs)")
    stage2_lr: Positive | None = Field(None, description="of the second stage (half of lr)")


class Extras(BaseModel):
    """beyond the paper; all off by default"""

    initial_checkpoint: str | None = Field(
        None, description="begin from these weights (a run or a .safetensors of it); a float net's become kernels"
    )
    smoothing: Share = Field(0.0, description="of the labels")
    teacher: str | None = Field(None, description="distil from this net (a run or a .safetensors of it)")
    distill_weight: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="of the teacher in the loss")
    distill_temperature: Positive = Field(4.0, description="that softens both nets' outputs")
    model_ema_decay: Share = Field(0.0, description="evaluate and keep a running mean of the weights; 0: off")
    clip_grad: NotNegative = Field(0.0, description="largest norm of the task's gradient; 0: off")
    bn_batches: Natural = Field(100, description="batches that re-estimate batch norm before the last evaluation")
    amp: Literal["bfloat16", "float16"] | None = Field(None, description="automatic mixed precision")
    sync_bn: bool = Field(False, description="batch norm over all processes (GPU only)")


class Keeping(BaseModel):
    """the run"""

    seed: int = Field(0, ge=0, lt=2**63, description="of all that is random")
    device: str = Field("auto", description="auto: the GPU if there is one, else the CPU")
    channels_last: bool = Field(False, description="memory layout: on CPUs a fifth faster for WRN")
    threads: Annotated[int, Field(ge=0, le=256)] = Field(0, description="of the CPU; 0: PyTorch's choice")
    test_every: Natural = Field(0, description="evaluate the test images every so many epochs too; 0: at the end")
    checkpoint_minutes: NotNegative = Field(
        10.0, description="within an epoch, save every so many minutes; 0: don't"
    )
    checkpoint_steps: Natural = Field(0, description="save every so many updates as well; 0: don't")
    keep_every: Natural = Field(0, description="keep the weights of every n-th epoch; 0: last and best only")
    tensorboard: bool = Field(False, description="write events for TensorBoard too")


SECTIONS: tuple[type[BaseModel], ...] = (Net, Data, Schedule, Extras, Keeping)


class Config(Keeping, Extras, Schedule, Data, Net):  # pydantic lists the fields of the last base first
    """A whole run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        _check_options(self)
        _check_kernel_rate(self)
        if self.two_stage and activation_bits(self) != 1:
            raise ValueError(
                "two_stage: the second stage inserts signs: use --activation-bits 1, and a method that takes it"
            )
        for key in ("stage2_lr", "stage2_epochs"):
            if getattr(self, key) is not None and not self.two_stage:
                raise ValueError(f"{key}: there is a second stage only with two_stage")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones {self.milestones}: must rise")
        return self


# What may be another at --resume: where things are and how they are shown, nothing that is meant to change weights.
FREE_AT_RESUME = frozenset({
    "data_dir", "teacher", "initial_checkpoint", "workers", "on_bad_image", "device", "threads", "test_every",
    "checkpoint_minutes", "checkpoint_steps", "keep_every", "tensorboard",
})  # fmt: skip


def settled(config: Config) -> Config:
    """The config with what its method decides written out, so that two of them can be compared."""
    from onebit.methods import authors_of

    if config.decay_kernels is not None:
        return config
    return config.model_copy(update={"decay_kernels": authors_of(config.method).decays_latents})


def is_switch(key: str) -> bool:
    """Whether a key is a matter of true or false."""
    return Config.model_fields[key].annotation in {bool, bool | None}


def flag(key: str) -> str:
    """A key as it stands in a command line."""
    return "--" + key.replace("_", "-")


def describe(error: dict[str, Any]) -> str:
    """One of pydantic's findings, in our manner: 'use at least 1'."""
    context = error.get("ctx", {})
    kind = str(error["type"])
    if kind == "literal_error":
        return "use " + str(context["expected"]).replace("'", "")
    if kind == "extra_forbidden":
        return "there is no such key"
    if kind == "value_error":
        return str(context["error"])
    limits = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if kind in limits:
        words, limit = limits[kind]
        return f"use {words} {context[limit]:g}"
    kinds = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "finite": "a finite number",
        "string": "text",
    }
    return "use " + next((words for start, words in kinds.items() if kind.startswith(start)), error["msg"].lower())


def activation_bits(net: Net) -> int:
    """Those of its layers: as the key says, or the method's own."""
    from onebit.methods import activation_bits_of

    return activation_bits_of(net.method, net.activation_bits)


def _check_options(net: Net) -> None:
    """What the method does not take is refused here, before any data is looked for."""
    from onebit.methods import check_taken

    options = {key: getattr(net, key) for key in ("activation_bits", *OPTIONS)}
    given = {key: value for key, value in options.items() if value is not None}
    if net.projections != 1 and net.method != "float":  # a float net is only as wide as its twin
        given["num_projections"] = net.projections
    try:
        check_taken(net.method, given)
    except ValueError as error:
        raise ValueError(str(error).replace("num_projections", "projections")) from None


def _check_kernel_rate(config: Config) -> None:
    """A rate for kernels that are not there would change nothing, and seem to."""
    from onebit.methods import has_kernels

    if config.kernel_rate not in {1.0, "authors"} and not has_kernels(config.method):
        raise ValueError(
            f"kernel_rate={config.kernel_rate}: method {config.method!r} has no kernels that learn and become bits"
        )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value
