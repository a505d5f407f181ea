"""Times forward and backward of PyTorch's ring attention as context_attention.cpp does ours. Started by benchmarks/context.py, once per rank.

torch.distributed.tensor.experimental.context_parallel knows CUDA's kernels alone: on the CPU it ends with "Operator
aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered" (torch 2.13). So this calls what stands behind it, with the CPU's
kernel: _templated_ring_attention and its backward, over gloo, which is what the context manager would run. SPEC's "rotate" is its set_rotate_method().
With "context_parallel" as its kind it runs the context manager itself, to see whether that works meanwhile.
Usage: python_context.py SPEC. Rank 0 prints one JSON line a size: length, ms, ms_min, cpu_ms, checksum, peak_rss_bytes."""
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention as api
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

spec = json.loads(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, RANKS = dist.get_rank(), dist.get_world_size()
MESH = init_device_mesh("cpu", (RANKS,))
causal = spec["causal"]
ring._cp_options.enable_load_balance = causal  # it balances causal attention alone
aten = torch.ops.aten


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(context, q, k, v):
        out, lse = ring._templated_ring_attention(dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu, query=q, key=k, value=v, is_causal=causal, dropout_p=0.0)
        context.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(context, dout):
        q, k, v, out, lse = context.saved_tensors
        return ring._templated_ring_attention_backward(dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu_backward.default, grad_out=dout,
                                                       grad_out_name="grad_out", query=q, key=k, value=v, out=out, logsumexp=lse, is_causal=causal, dropout_p=0.0)


def mine(whole):
    if not causal:
        return whole.chunk(RANKS, 2)[RANK].clone()
    chunks = whole.chunk(2 * RANKS, 2)
    return torch.cat([chunks[RANK], chunks[2 * RANKS - 1 - RANK]], 2)


def largest(value):
    value = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def call(q, k, v, dout):
    if spec["kind"] != "context_parallel":
        out = RingAttention.apply(q, k, v)
        out.backward(dout)
        return out
    with api.context_parallel(MESH):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.backward(dout)
    return out


ring.set_rotate_method(spec["rotate"])
for size in spec["sizes"]:
    torch.manual_seed(1)
    q, k, v, dout = (mine(torch.randn(size["batch"], size["heads"], size["length"], size["head_size"])) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    ms, cpu_ms = [], []
    for repeat in range(-1, spec["repeats"]):  # the first does not count
        for x in (q, k, v):
            x.grad = None
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        out = call(q, k, v, dout)
        cpu = torch.tensor([(time.process_time() - cpu_start) * 1e3], dtype=torch.float64)
        seconds = largest(time.perf_counter() - start)
        if repeat >= 0:
            dist.all_reduce(cpu)
            ms.append(seconds * 1e3)
            cpu_ms.append(cpu.item())
    checksum = (out.detach().abs().sum() + sum(x.grad.abs().sum() for x in (q, k, v))).double().view(1)
    dist.all_reduce(checksum)
    peak = largest(float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    if RANK == 0:
        print(json.dumps(dict(length=size["length"], ms=statistics.median(ms), ms_min=min(ms), cpu_ms=statistics.median(cpu_ms), checksum=checksum.item(), peak_rss_bytes=int(peak))), flush=True)
dist.barrier()
dist.destroy_process_group()
