"""Times all-reduce in place on fp32 tensors as `trireme bench comm` does. Started by benchmarks/run comm, once per rank.
Usage: python_all_reduce.py gloo|deepspeed REPEATS BYTES... Rank 0 prints one JSON line a size: bytes, us (median), us_min."""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

library, repeats, sizes = sys.argv[1], int(sys.argv[2]), [int(text) for text in sys.argv[3:]]
torch.set_num_threads(1)
if library == "deepspeed":
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    call = deepspeed.comm.inference_all_reduce  # its shared-memory path
else:
    dist.init_process_group("gloo")
    call = dist.all_reduce


def measure(tensor, rounds):
    """Seconds of one call, the slowest rank's."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        call(tensor)
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item() / rounds


for size in sizes:
    data = torch.zeros(size // 4)
    measure(data, 2)
    rounds = min(2000, max(1, int(2e-3 / measure(data, 3))))
    us = [measure(data, rounds) * 1e6 for _ in range(repeats)]
    if os.environ["RANK"] == "0":
        print(json.dumps(dict(ranks=dist.get_world_size(), bytes=size, us=statistics.median(us), us_min=min(us))), flush=True)
dist.barrier()
dist.destroy_process_group()
