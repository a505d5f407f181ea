"""Writes reference_schedules.json: what DeepSpeed's learning-rate schedules give an optimizer, step by step.

    pip install deepspeed==0.19.8 torch==2.13.0
    DS_ACCELERATOR=cpu python reference_schedules.py reference_schedules.json     (DeepSpeed logs to standard output)

Each case is driven as a training loop drives it: the optimizer steps with what its group holds, then
the schedule steps. "lr"[k] and "beta1"[k] are what optimizer step "steps"[k], counted from 1, used.
"""
import json
import sys

import torch
from deepspeed.runtime import lr_schedules

OPTIMIZER_LR = 0.0015

CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 3e-3, "warmup_num_steps": 20}),
    ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 3e-3, "warmup_num_steps": 20, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupLR", {"warmup_num_steps": 2, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 60, "warmup_num_steps": 10}),
    ("WarmupDecayLR", {"total_num_steps": 60, "warmup_min_lr": 1e-4, "warmup_max_lr": 2e-3, "warmup_num_steps": 15,
                       "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 8, "warmup_num_steps": 12, "warmup_max_lr": 2e-3}),
    ("WarmupDecayLR", {"total_num_steps": 12, "warmup_num_steps": 12, "warmup_max_lr": 2e-3}),
    ("WarmupCosineLR", {"total_num_steps": 60, "warmup_num_steps": 10}),
    ("WarmupCosineLR", {"total_num_steps": 70, "warmup_num_steps": 7, "warmup_min_ratio": 0.05, "cos_min_ratio": 0.1,
                        "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 9, "cos_min_ratio": 0.2}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 2e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 2.5}),
    ("LRRangeTest", {"lr_range_test_min_lr": 2e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 2.5,
                     "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10, "cycle_second_step_size": 23,
                  "decay_step_size": 5, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 9, "cycle_second_step_size": 21,
                  "cycle_first_stair_count": 3, "cycle_second_stair_count": 7, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 7, "cycle_first_stair_count": 4,
                  "decay_step_size": 3, "decay_lr_rate": 1.0}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 12, "cycle_second_step_size": 0,
                  "decay_step_size": 4, "decay_mom_rate": 0.02}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 11, "cycle_momentum": False}),
]
# Every early step and some late ones, for the schedules with default lengths.
STEPS = list(range(1, 101)) + [500, 999, 1000, 1001, 1002, 1003, 1500, 1999, 2000, 2001, 2002, 3000, 3999, 4000, 4001, 4002, 4500]


def run(name, params):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=OPTIMIZER_LR)
    schedule = getattr(lr_schedules, name)(optimizer, **params)
    group = optimizer.param_groups[0]
    lr, beta1, beta2 = [], [], []
    for step in range(1, STEPS[-1] + 1):
        if step in STEPS:
            lr.append(group["lr"])
            beta1.append(group["betas"][0])
            beta2.append(group["betas"][1])
        optimizer.step()
        schedule.step()
    case = {"name": name, "params": params, "lr": lr}
    if name == "OneCycle" and params.get("cycle_momentum", True):
        case.update(beta1=beta1, beta2=beta2)
    return case


cases = [run(name, params) for name, params in CASES]
out = ['{"optimizer_lr": %r, "steps": %s, "cases": [' % (OPTIMIZER_LR, json.dumps(STEPS))]
out += [json.dumps(case) + ("," if case is not cases[-1] else "") for case in cases]
out.append("]}")
with open(sys.argv[1], "w") as file:
    file.write("\n".join(out) + "\n")
