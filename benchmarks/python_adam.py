"""Times AdamW steps over one flat parameter in Python. Started by benchmarks/run optim.
Usage: python_adam.py IMPLEMENTATION PARAMS THREADS REPEATS. Prints one JSON line: ms (median), ms_min.

fused, foreach: torch, fp32. deepspeed: DeepSpeedCPUAdam, fp32. mixed: a bf16 step as eager PyTorch does it, 52 bytes a parameter: the
gradient to fp32, its norm, clipping, fused AdamW on the fp32 master, the bf16 copy. deepspeed-bf16: DeepSpeedCPUAdam on bf16 parameters
and gradients with fp32 states; neither a master nor a norm, so less work than a mixed step."""
import json
import statistics
import sys
import time

import torch

implementation, (count, threads, repeats) = sys.argv[1], map(int, sys.argv[2:5])
torch.set_num_threads(threads)
dtype = torch.bfloat16 if implementation == "deepspeed-bf16" else torch.float32
parameter = torch.nn.Parameter(torch.full((count,), 0.02, dtype=dtype))
parameter.grad = torch.full((count,), 0.01, dtype=dtype)
options = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
if implementation.startswith("deepspeed"):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam([parameter], adamw_mode=True, **options)
else:
    optimizer = torch.optim.AdamW([parameter], **{"foreach" if implementation == "foreach" else "fused": True}, **options)
step = optimizer.step
if implementation == "mixed":
    narrow_gradient, narrow = parameter.grad.bfloat16(), parameter.detach().bfloat16()

    def step():
        parameter.grad.copy_(narrow_gradient)
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        with torch.no_grad():
            narrow.copy_(parameter)


ms = []
for _ in range(repeats + 2):
    start = time.perf_counter()
    step()
    ms.append((time.perf_counter() - start) * 1e3)
ms = ms[2:]  # the first makes the state, the second warms up
print(json.dumps(dict(ms=statistics.median(ms), ms_min=min(ms))))
