"""Writes reference_optimizers.json: parameters and states after 1, 10 and 100 steps of torch's optimizers.

    python reference_optimizers.py > reference_optimizers.json          (torch==2.13.0)

Parameters and gradients come from a hash that the test repeats exactly. Each case is run in fp32
("param" and the states: what torch gives) and in fp64 ("exact": what rounding takes away from).
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
]
STATES = {"adamw": ["exp_avg", "exp_avg_sq"], "adam": ["exp_avg", "exp_avg_sq"], "sgd": ["momentum_buffer"]}


def value(step, i):
    """In [-1, 1), exact in fp32, spread over ten powers of two."""
    bits = ((step * 7919 + i * 104729 + 12345) * 2654435761) % 2**32
    return ((bits >> 9) / 2**22 - 1) * 2.0 ** -(i % 10)


def run(name, options, dtype):
    param = torch.nn.Parameter(torch.tensor([value(0, i) for i in range(N)], dtype=dtype))
    make = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    optimizer = make([param], foreach=False, **options)
    found = {}
    for step in range(1, STEPS[-1] + 1):
        param.grad = torch.tensor([value(step, i) for i in range(N)], dtype=dtype)
        optimizer.step()
        if step in STEPS:
            state = optimizer.state[param]
            found[step] = {"param": param.detach().tolist()}
            if name != "sgd" or options["momentum"] > 0:
                found[step].update({key: state[key].tolist() for key in STATES[name]})
    return found


def case(name, options):
    torch32, exact = run(name, options, torch.float32), run(name, options, torch.float64)
    after = [{"step": step, **torch32[step], "exact": exact[step]["param"]} for step in STEPS]
    return {"name": name, "options": options, "after": after}


def rounded(x):
    return float("%.10g" % x)


cases = [case(*c) for c in CASES]
text = json.dumps({"n": N, "cases": cases})
text = json.dumps(json.loads(text, parse_float=lambda x: rounded(float(x))))
sys.stdout.write(text.replace('{"name"', '\n{"name"').replace('{"step"', '\n  {"step"') + "\n")
