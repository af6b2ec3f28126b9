"""Optimizers as users write them, for tests: some that are captured, some that must be refused."""

from __future__ import annotations

import math
import random
from math import sqrt
from typing import Any

import torch

Optimizer: Any = torch.optim.Optimizer


class Muon(Optimizer):
    """Orthogonalised momentum, by Newton-Schulz iterations."""

    def __init__(self, params, lr=0.02, momentum=0.9, rounds=3):
        super().__init__(params, {"lr": lr, "momentum": momentum, "rounds": rounds})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(p.grad)
                state["buffer"].mul_(group["momentum"]).add_(p.grad)
                update = p.grad.add(state["buffer"], alpha=group["momentum"])
                if update.ndim == 2:
                    update = orthogonal(update, group["rounds"]) * max(1, p.size(0) / p.size(1)) ** 0.5
                p.add_(update, alpha=-group["lr"])


def orthogonal(g, rounds):
    x = g / (g.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


class Lion(Optimizer):
    """With a Python step count in its state, a warmup by it, and `.data` all over."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, warmup=4):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "warmup": warmup})

    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(p)
                state["step"] += 1
                lr = group["lr"] * min(1.0, state["step"] / group["warmup"]) * math.sqrt(1 - beta2 ** state["step"])
                p.data.mul_(1 - lr * group["weight_decay"])
                p.data = p.data - lr * torch.sign(beta1 * state["mean"] + (1 - beta1) * p.grad.data)
                state["mean"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Counting(Optimizer):
    """A count in its groups, a number for all parameters in its state, state that begins as the parameter."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr, "k": 0, "largest": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group["k"] + 1
            group["largest"] = max(group["largest"], group["lr"])
            self.state["all"]["product"] = self.state["all"].get("product", 1.0) * 0.9
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "anchor" not in state:
                    state["anchor"] = p.clone()
                p.sub_(group["largest"] / group["k"] ** 0.5 * p.grad)
                p.lerp_(state["anchor"], 0.1 * self.state["all"]["product"])


class BornOfTheGradient(Optimizer):
    """The first step is unlike all others."""

    def __init__(self, params, lr=0.05, momentum=0.5):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["m"] = group["momentum"] * state["m"] + p.grad if "m" in state else p.grad.clone()
                p.add_(state["m"], alpha=-group["lr"])


class Lists(Optimizer):
    """All parameters at once."""

    def __init__(self, params, lr=0.05, momentum=0.5):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            moments = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in params]
            torch._foreach_mul_(moments, group["momentum"])
            torch._foreach_add_(moments, [p.grad for p in params])
            torch._foreach_add_(params, moments, alpha=-group["lr"])


class SGDOfMine(torch.optim.SGD):
    """A subclass that steps otherwise than its base."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(2 * group["lr"] * p.grad.sign())


class HoldsParameters(Optimizer):
    def __init__(self, params, lr=0.05):
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.mine = params

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.mine:
            p.sub_(self.param_groups[0]["lr"] * p.grad)


class _Plain(Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})
        self.setup()

    def setup(self):
        pass

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self.one(group, p, self.state[p])


class Baked(_Plain):
    def setup(self):
        self.t = 0

    def step(self, closure=None):
        self.t += 1
        super().step()

    def one(self, group, p, state):
        p.sub_(group["lr"] * (1 - 0.9**self.t) * p.grad)


class HiddenDecision(Baked):
    def one(self, group, p, state):
        p.sub_(group["lr"] * (2 if self.t % 10 == 0 else 1) * p.grad)


class BakedInAClosure(_Plain):
    def setup(self):
        count = [0]

        def beta():
            count[0] += 1
            return 0.9 ** count[0]

        self.beta = beta

    def one(self, group, p, state):
        p.sub_(group["lr"] * (1 - self.beta()) * p.grad)


class PlainRoot(_Plain):
    """`math.sqrt` by another name takes the number in the count."""

    def one(self, group, p, state):
        state["step"] = state.get("step", 0) + 1
        p.add_(p.grad, alpha=-0.1 / sqrt(state["step"]))


class PlainOption(_Plain):
    def one(self, group, p, state):
        p.add_(p.grad, alpha=-0.1 * sqrt(group["lr"]))


class CountAsInt(_Plain):
    def one(self, group, p, state):
        state["step"] = state.get("step", 0) + 1
        for _ in range(int(state["step"])):
            p.mul_(0.99)


class ByData(_Plain):
    def one(self, group, p, state):
        if p.grad.norm().item() > 1:
            p.sub_(group["lr"] * p.grad)


class ByDataInState(_Plain):
    def one(self, group, p, state):
        state["norm"] = p.grad.norm()
        if state.get("before", 0.0) > 1:
            p.sub_(group["lr"] * p.grad)
        state["before"] = state["norm"].item()


class Growing(_Plain):
    def one(self, group, p, state):
        state[f"grad{len(state)}"] = p.grad.clone()
        p.sub_(group["lr"] * p.grad)


class KeptOutside(_Plain):
    def setup(self):
        self.mean = None

    def one(self, group, p, state):
        self.mean = p.grad.mean() if self.mean is None else self.mean
        p.sub_(group["lr"] * self.mean)


class WritesOutside(_Plain):
    def setup(self):
        self.means = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    def one(self, group, p, state):
        mean = next(m for m in self.means if m.shape == p.shape)
        mean.mul_(0.9).add_(p.grad)
        p.sub_(group["lr"] * mean)


class Drawn(_Plain):
    def one(self, group, p, state):
        p.sub_(group["lr"] * random.random() * p.grad)


class Wrapper(Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        self.inner.step()


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "baked": (Baked, ("self.t", "second step", "optimizer_zoo.py")),
    "hidden decision": (HiddenDecision, ("self.t", "optimizer_zoo.py")),
    "closure": (BakedInAClosure, ("aten.", "in one step", "second step", "optimizer_zoo.py")),
    "plain root": (PlainRoot, ("alpha=", "in one step", "optimizer_zoo.py")),
    "plain option": (PlainOption, ("alpha=", "in one step", "optimizer_zoo.py")),
    "count as int": (CountAsInt, ("int()", "changes with every step", "step", "optimizer_zoo.py")),
    "by data": (ByData, ("depends on data", "torch.where", "optimizer_zoo.py")),
    "by data in state": (ByDataInState, ("depends on data", "before")),
    "growing": (Growing, ("how its state is built", "grad")),
    "kept outside": (KeptOutside, ("self.mean", "not in its state")),
    "writes outside": (WritesOutside, ("a tensor of shape", "not in its state")),
    "drawn": (Drawn, ("in one step", "optimizer_zoo.py")),
    "wrapper": (lambda p: Wrapper(torch.optim.SGD(p, lr=0.1)), ("Wrapper", ".inner", "SGD")),
    "lbfgs": (torch.optim.LBFGS, ("LBFGS", "again and again")),
}
CAPTURED: dict[str, Any] = {
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01, t0=3),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, nesterov=False),
    "muon": Muon,
    "lion": Lion,
    "counting": Counting,
    "born of the gradient": BornOfTheGradient,
    "lists": Lists,
    "sgd of mine": lambda p: SGDOfMine(p, lr=0.01, momentum=0.9),
    "holds parameters": HoldsParameters,
    "two": lambda p: [
        torch.optim.RMSprop([x for x in p if x.ndim == 2], lr=0.01),
        torch.optim.AdamW([x for x in p if x.ndim != 2], lr=0.01),
    ],
}
if hasattr(torch.optim, "Muon"):
    CAPTURED["torch's muon"] = lambda p: [
        torch.optim.Muon([x for x in p if x.ndim == 2], lr=0.01),
        torch.optim.SGD([x for x in p if x.ndim != 2], lr=0.1),
    ]
