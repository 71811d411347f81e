"""One update, against the same done by hand with plain torch."""

import copy

import pytest
import torch
import torch.nn.functional as F

from onebit.errors import UserError
from onebit.training.learner import Learner
from onebit.training.processes import Processes
from onebit.training.schedule import stages
from training_runs import small_config


def tiny_net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 5),
    )


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(12, 1, 8, 8, generator=generator), torch.randint(0, 5, (12,), generator=generator))
        for _ in range(count)
    ]


def cross_entropy(logits, labels, smoothing=0.0):
    """By its definition."""
    targets = torch.full_like(logits, smoothing / logits.shape[1])
    targets[torch.arange(len(labels)), labels] += 1 - smoothing
    return -(targets * logits.log_softmax(1)).sum(1).mean()


def distilled(logits, labels, taught, weight, T):
    """(1 - w) CE + w T^2 KL(teacher || student), both softened by T."""
    p, log_q = (taught / T).softmax(1), (logits / T).log_softmax(1)
    kl = (p * (p.log() - log_q)).sum(1).mean()
    return (1 - weight) * cross_entropy(logits, labels) + weight * T * T * kl


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"smoothing": 0.2},
        {"clip_grad": 0.01},
        {"distill_weight": 0.7, "distill_temperature": 3.0},
        {"opt": "adamw", "lr": 0.01, "weight_decay": 0.1},
        {"weight_decay": 0.1, "decay_norm_and_bias": False},
        {"momentum": 0.0},
        {"nesterov": False},
        {"model_ema_decay": 0.8},
    ],
    ids=str,
)
def test_an_update_is_what_it_says(keys):
    config = small_config(**keys)
    teacher = tiny_net(7).eval() if "distill_weight" in keys else None
    net = tiny_net()
    by_hand, mean = copy.deepcopy(net), copy.deepcopy(net)
    with Processes("cpu") as processes:
        learner = Learner(net, config, stages(config)[0], processes, teacher)
    matrices = [p for p in by_hand.parameters() if p.ndim > 1]
    vectors = [p for p in by_hand.parameters() if p.ndim == 1]
    decay = config.weight_decay if config.decay_norm_and_bias else 0.0
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": decay}]
    if config.opt == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay)
    else:
        nesterov = config.momentum > 0 and keys != {"nesterov": False}
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov,
                                    weight_decay=config.weight_decay)  # fmt: skip
    for step, (images, labels) in enumerate(batches(4)):
        outcome = learner.update(images, labels, 0.5, 0, step)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * 0.5
        logits = by_hand(images)
        if teacher is None:
            loss = cross_entropy(logits, labels, config.smoothing)
        else:
            loss = distilled(logits, labels, teacher(images).detach(), 0.7, 3.0)
        optimizer.zero_grad()
        loss.backward()
        if config.clip_grad:
            norm = torch.stack([p.grad.norm() for p in by_hand.parameters()]).norm()
            assert norm > config.clip_grad
            for p in by_hand.parameters():
                p.grad *= config.clip_grad / norm
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(mean.parameters(), by_hand.parameters(), strict=True):
                p.copy_(0.8 * p + 0.2 * q)
        torch.testing.assert_close(outcome.loss_s, loss.detach())
        assert int(outcome.correct) == int((logits.argmax(1) == labels).sum())
        assert float(outcome.loss_p) == 0
    for name, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(learner.net.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    if config.model_ema_decay:
        for p, q in zip(learner.evaluated.parameters(), mean.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
        for p, q in zip(learner.evaluated.buffers(), by_hand.buffers(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    else:
        assert learner.evaluated is learner.net


def test_cross_entropy_by_hand_is_torchs():
    images, labels = batches(1)[0]
    logits = tiny_net()(images)
    torch.testing.assert_close(
        cross_entropy(logits, labels, 0.3), F.cross_entropy(logits, labels, label_smoothing=0.3)
    )


def test_randomness_of_an_update_is_of_seed_epoch_and_step():
    """Dropout, that is."""
    images, labels = batches(1)[0]
    losses = {}
    for key in ((0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        net = torch.nn.Sequential(torch.nn.Dropout(0.5), tiny_net())
        config = small_config(seed=key[0])
        torch.manual_seed(99)
        with Processes("cpu") as processes:
            loss = float(
                Learner(net, config, stages(config)[0], processes, None).update(images, labels, 1.0, *key[1:])[0]
            )
        assert losses.setdefault(key, loss) == loss
    assert len(set(losses.values())) == 4


def test_every_process_draws_its_own():
    """Two of them, of which each is seen alone: no step of either drops what another step or process drops."""
    images, labels = batches(1)[0]
    config = small_config()
    losses = {}
    for rank in range(2):
        with Processes("cpu") as processes:
            net = torch.nn.Sequential(torch.nn.Dropout(0.5), tiny_net())
            learner = Learner(net, config, stages(config)[0], processes, None)
        processes.rank, processes.count = rank, 2
        for step in range(3):
            losses[rank, step] = float(learner.update(images, labels, 0.0, 0, step).loss_s)
    assert len(set(losses.values())) == 6, losses


@pytest.mark.parametrize("scaler", [{"scale": 2.0}, [1], "large", {"scale": None, "growth_factor": None}])
def test_a_scalers_state_that_is_none(scaler):
    config = small_config(amp="float16")
    with Processes("cpu") as processes:
        learner = Learner(tiny_net(), config, stages(config)[0], processes, None)
        weights = learner.net.state_dict()
        with pytest.raises(UserError, match="the scale of its loss"):
            learner.load_state(weights, {}, {"scaler": scaler}, has_learned=False)


def test_the_scalers_state_is_restored():
    config = small_config(amp="float16")
    images, labels = batches(1)[0]
    with Processes("cpu") as processes:
        one, other = (Learner(tiny_net(), config, stages(config)[0], processes, None) for _ in range(2))
    one.update(images, labels, 1.0, 0, 0)
    one.scaler.update(512.0)
    tensors, numbers = one.state()
    other.load_state(one.evaluated.state_dict(), tensors, numbers, has_learned=True)
    assert other.scaler.state_dict() == one.scaler.state_dict()


def test_gradients_are_clipped_as_they_are_not_as_they_are_scaled():
    """A scaler multiplies them by 65,536: clipped like that, hardly anything would be left of them."""
    config = small_config(amp="float16", clip_grad=0.01, momentum=0.0, weight_decay=0.0, lr=1.0)
    net = tiny_net()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with Processes("cpu") as processes:
        learner = Learner(net, config, stages(config)[0], processes, None)
    learner.update(*batches(1)[0], 1.0, 0, 0)
    moved = torch.stack([(p - q).norm() for p, q in zip(net.parameters(), before, strict=True)]).norm()
    assert float(moved.detach()) == pytest.approx(0.01, rel=1e-2)
