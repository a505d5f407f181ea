"""Writes reference_optimizers.json: parameters and states after 1, 10 and 100 steps of torch's optimizers, and of LAMB and Lion.

    python reference_optimizers.py > reference_optimizers.json          (torch==2.13.0)

Parameters and gradients come from a hash that the test repeats exactly. Each case is run in fp32
("param" and the states: what torch gives) and in fp64 ("exact": what rounding takes away from).
"grad": the gradients are rounded to this type first, as a model of that type gives them; the optimizer steps an fp32 master.
LAMB and Lion are not in torch. Here they are written down from DeepSpeed's formulas (csrc/lamb/fused_lamb_cuda_kernel.cu, which
needs a GPU; csrc/lion/cpu_lion_impl.cpp): an implementation of its own to compare with. LAMB's weights are two parameters, cut at SPLIT.
"""
import json
import sys

import torch

N = 37
STEPS = [1, 10, 100]
CASES = [
    ("adamw", {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}),
    ("adamw", {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}),
    ("adamw", {"lr": 0.05, "betas": [0.5, 0.75], "eps": 1e-3, "weight_decay": 0.5}),
    ("adamw", {"lr": 1e-3, "betas": [0.0, 0.9], "eps": 1e-8, "weight_decay": 0.01}),
    ("adam", {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}),
    ("adam", {"lr": 2e-3, "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.01, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}),
    ("sgd", {"lr": 0.01, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False}),
    ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}),
    ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "nesterov": False}),
    ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": True}),
    ("adamw", {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}, "bfloat16"),
    ("adam", {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}, "float16"),
    ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": True}, "bfloat16"),
    ("lamb", {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.0}),
    ("lamb", {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}),
    ("lamb", {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.1, "eps_inside_sqrt": True, "bias_correction": False}),
    ("lamb", {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.1, "max_coeff": 0.05, "min_coeff": 0.04}),
    ("lamb", {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.1}, "bfloat16"),
    ("lion", {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.0}),
    ("lion", {"lr": 3e-3, "betas": [0.95, 0.98], "weight_decay": 0.1}),
    ("lion", {"lr": 3e-3, "betas": [0.95, 0.98], "weight_decay": 0.1}, "bfloat16"),
    ("adagrad", {"lr": 1e-2, "lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0, "initial_accumulator_value": 0.0}),
    ("adagrad", {"lr": 1e-2, "lr_decay": 0.01, "eps": 1e-8, "weight_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("adagrad", {"lr": 1e-2, "lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0, "initial_accumulator_value": 0.0}, "bfloat16"),
    ("rmsprop", {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False}),
    ("rmsprop", {"lr": 1e-3, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.1, "momentum": 0.9, "centered": False}),
    ("rmsprop", {"lr": 1e-2, "alpha": 0.95, "eps": 1e-6, "weight_decay": 0.0, "momentum": 0.0, "centered": True}),
    ("rmsprop", {"lr": 1e-3, "alpha": 0.95, "eps": 1e-6, "weight_decay": 0.01, "momentum": 0.9, "centered": True}),
    ("rmsprop", {"lr": 1e-3, "alpha": 0.95, "eps": 1e-6, "weight_decay": 0.01, "momentum": 0.9, "centered": True}, "float16"),
]
SPLIT = 20
ADAM_STATES = ["exp_avg", "exp_avg_sq"]


class Lamb:
    def __init__(self, params, lr, betas, eps, weight_decay, bias_correction=True, max_coeff=10.0, min_coeff=0.01, eps_inside_sqrt=False):
        self.params, self.lr, self.betas, self.eps, self.weight_decay = params, lr, betas, eps, weight_decay
        self.bias_correction, self.coefficients, self.eps_inside_sqrt, self.steps = bias_correction, (min_coeff, max_coeff), eps_inside_sqrt, 0
        self.state = {p: {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)} for p in params}

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for p in self.params:
            m, v = self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
            cut = SPLIT if len(p) > SPLIT else len(p)
            m.copy_(beta1 * m + (1 - beta1) * p.grad)
            v.copy_(beta2 * v + (1 - beta2) * p.grad * p.grad)
            step_size = self.lr
            if self.bias_correction:
                step_size *= (1 - beta2**self.steps) ** 0.5 / (1 - beta1**self.steps)
            for part in (slice(0, cut), slice(cut, None)):
                root = (v[part] + self.eps).sqrt() if self.eps_inside_sqrt else v[part].sqrt() + self.eps
                update = m[part] / root + self.weight_decay * p[part]
                norm, update_norm = p[part].double().norm().item(), update.double().norm().item()
                coefficient = min(max(norm / update_norm, self.coefficients[0]), self.coefficients[1]) if norm and update_norm else 1.0
                p[part] -= step_size * coefficient * update


class Lion:
    def __init__(self, params, lr, betas, weight_decay):
        self.params, self.lr, self.betas, self.weight_decay = params, lr, betas, weight_decay
        self.state = {p: {"exp_avg": torch.zeros_like(p)} for p in params}

    @torch.no_grad()
    def step(self):
        beta1, beta2 = self.betas
        for p in self.params:
            m = self.state[p]["exp_avg"]
            direction = (beta1 * m + (1 - beta1) * p.grad).sign()
            p.copy_(p * (1 - self.lr * self.weight_decay) - self.lr * direction)
            m.copy_(beta2 * m + (1 - beta2) * p.grad)


def torch_optimizer(kind):
    return lambda params, **options: kind(params, foreach=False, **options)


MAKE = {"adamw": torch_optimizer(torch.optim.AdamW), "adam": torch_optimizer(torch.optim.Adam), "sgd": torch_optimizer(torch.optim.SGD),
        "adagrad": torch_optimizer(torch.optim.Adagrad), "rmsprop": torch_optimizer(torch.optim.RMSprop), "lamb": Lamb, "lion": Lion}


def states_of(name, options):
    if name == "sgd":
        return ["momentum_buffer"] if options["momentum"] else []
    if name == "rmsprop":
        return ["square_avg"] + ["grad_avg"] * options["centered"] + ["momentum_buffer"] * (options["momentum"] > 0)
    return {"lion": ["exp_avg"], "adagrad": ["sum"]}.get(name, ADAM_STATES)


def value(step, i):
    """In [-1, 1), exact in fp32, spread over ten powers of two."""
    bits = ((step * 7919 + i * 104729 + 12345) * 2654435761) % 2**32
    return ((bits >> 9) / 2**22 - 1) * 2.0 ** -(i % 10)


def run(name, options, dtype, grad):
    param = torch.nn.Parameter(torch.tensor([value(0, i) for i in range(N)], dtype=dtype))
    optimizer = MAKE[name]([param], **options)
    found = {}
    for step in range(1, STEPS[-1] + 1):
        param.grad = torch.tensor([value(step, i) for i in range(N)]).to(getattr(torch, grad)).to(dtype)
        optimizer.step()
        if step in STEPS:
            state = optimizer.state[param]
            found[step] = {"param": param.detach().tolist()}
            found[step].update({key: state[key].tolist() for key in states_of(name, options)})
    return found


def case(name, options, grad="float32"):
    torch32, exact = run(name, options, torch.float32, grad), run(name, options, torch.float64, grad)
    after = [{"step": step, **torch32[step], "exact": exact[step]["param"]} for step in STEPS]
    return {"name": name, "grad": grad, "options": options, "after": after}


def rounded(x):
    return float("%.10g" % x)


cases = [case(*c) for c in CASES]
text = json.dumps({"n": N, "split": SPLIT, "cases": cases})
text = json.dumps(json.loads(text, parse_float=lambda x: rounded(float(x))))
sys.stdout.write(text.replace('{"name"', '\n{"name"').replace('{"step"', '\n  {"step"') + "\n")
