"""Times AdamW steps over one flat fp32 parameter in Python. Started by benchmarks/run optim.
Usage: python_adam.py fused|foreach|deepspeed PARAMS THREADS REPEATS. Prints one JSON line: ms (median), ms_min."""
import json
import statistics
import sys
import time

import torch

implementation, (count, threads, repeats) = sys.argv[1], map(int, sys.argv[2:5])
torch.set_num_threads(threads)
parameter = torch.nn.Parameter(torch.full((count,), 0.02))
parameter.grad = torch.full((count,), 0.01)
options = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
if implementation == "deepspeed":
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam([parameter], adamw_mode=True, **options)
else:
    optimizer = torch.optim.AdamW([parameter], **{implementation: True}, **options)

ms = []
for _ in range(repeats + 2):
    start = time.perf_counter()
    optimizer.step()
    ms.append((time.perf_counter() - start) * 1e3)
ms = ms[2:]  # the first makes the state, the second warms up
print(json.dumps(dict(ms=statistics.median(ms), ms_min=min(ms))))
