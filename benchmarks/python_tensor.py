"""Trains the benchmark's GPT with PyTorch's tensor parallelism (parallelize_module, DTensor), with and without sequence parallelism. Started by benchmarks/tensor.py, once per rank.
Usage: python_tensor.py SPEC. Each rank prints one JSON line: step_ms, losses."""
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

from python_gpt import fill, hugging_face_name
from python_loop import make_batches, make_optimizer


class Block(nn.Module):
    """Queries, keys and values apart: columns of one matrix for all three would give each rank the wrong ones."""

    def __init__(self, hidden, heads, ranks):
        super().__init__()
        self.local_heads, self.head = heads // ranks, hidden // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.c_proj = (nn.Linear(hidden, hidden) for _ in range(4))
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, x):
        q, k, v = (linear(x) for linear in (self.q, self.k, self.v))
        q, k, v = (t.view(t.shape[0], t.shape[1], self.local_heads, self.head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.c_proj(y.reshape(y.shape[0], y.shape[1], -1))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, spec):
        super().__init__()
        hidden = spec["hidden"]
        self.wte, self.wpe = nn.Embedding(spec["vocab"], hidden), nn.Embedding(spec["length"], hidden)
        self.h = nn.ModuleList(Block(hidden, spec["heads"], spec["tensor"]) for _ in range(spec["layers"]))
        self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, spec["vocab"], bias=False)

    def forward(self, tokens, positions):
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@torch.no_grad()
def fill_all(model, spec):
    """The values of the model with one projection for queries, keys and values."""
    hidden = spec["hidden"]
    for name, parameter in model.named_parameters():
        if ".q." not in name and ".k." not in name and ".v." not in name:
            fill(parameter, hugging_face_name(name), spec)
    for i, block in enumerate(model.h):
        weight, bias = torch.empty(3 * hidden, hidden), torch.empty(3 * hidden)
        fill(weight, f"transformer.h.{i}.attn.c_attn.weight", spec)
        fill(bias, f"transformer.h.{i}.attn.c_attn.bias", spec)
        for part, linear in enumerate((block.q, block.k, block.v)):
            linear.weight.copy_(weight[part * hidden: (part + 1) * hidden])
            linear.bias.copy_(bias[part * hidden: (part + 1) * hidden])


def parallelize(model, mesh, sequence_parallel):
    """As the tutorial "Large Scale Transformer model training with Tensor Parallel" has it."""
    sequence = Shard(1)
    inside = sequence if sequence_parallel else Replicate()
    outer = {
        "wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=inside),
        "lm_head": ColwiseParallel(input_layouts=inside, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence_parallel:
        outer["wpe"] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(sequence,), use_local_output=True)
        outer["ln_f"] = SequenceParallel()
    parallelize_module(model, mesh, outer)
    for block in model.h:
        plan = {name: ColwiseParallel(input_layouts=inside) for name in ("q", "k", "v", "c_fc")}
        plan |= {name: RowwiseParallel(output_layouts=inside) for name in ("c_proj", "c_out")}
        if sequence_parallel:
            plan |= {"ln_1": SequenceParallel(), "ln_2": SequenceParallel()}
        parallelize_module(block, mesh, plan)


def by_kind(model):
    """Torch's fused AdamW takes DTensors or plain tensors, not both."""
    split = [[], []]
    for parameter in model.parameters():
        split[isinstance(parameter, DTensor)].append(parameter)
    return split


def main():
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (spec["tensor"],))
    model = GPT(spec)
    fill_all(model, spec)
    parallelize(model, mesh, spec["sequence_parallel"])
    optimizers = [make_optimizer(nn.ParameterList(part)) for part in by_kind(model) if part]
    positions = torch.arange(spec["length"]).unsqueeze(0)
    step_ms, losses = [], []
    for micro_batches in make_batches(spec, 0):
        start = time.perf_counter()
        total = 0.0
        for x, y in micro_batches:
            with loss_parallel():
                logits = model(x, positions)
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
                (loss / len(micro_batches)).backward()
            total += (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step_ms.append((time.perf_counter() - start) * 1e3)
        losses.append(total / len(micro_batches))
    print(json.dumps(dict(step_ms=step_ms, losses=losses)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
