"""Trains the benchmark's GPT in Python: a plain loop, torch.compile, DDP, FSDP2 or DeepSpeed, in fp32 or bf16. Started by benchmarks/run, once per rank.
Usage: python_loop.py SPEC, a JSON object of workloads.py with "engine"; ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Each rank prints one JSON line: step_ms, ended (seconds at the end of each step), losses, peak_rss_bytes."""
import contextlib
import json
import os
import re
import sys
import time

import numpy
import torch

from python_gpt import build, loss as loss_of
from workloads import AIO, BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, offload_of, rank_positions


def make_batches(spec, rank):
    """Every (input, target) of this rank before the clock starts: batches[step][micro-batch]."""
    tokens = torch.from_numpy(numpy.fromfile(spec["tokens"], dtype="<u2").astype("int64"))
    length, batches = spec["length"], []
    for step in rank_positions(spec, rank):
        rows = [torch.stack([tokens[i * length: i * length + length + 1] for i in micro]) for micro in step]
        batches.append([(r[:, :-1].contiguous(), r[:, 1:].contiguous()) for r in rows])
    return batches


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True)


class Loop:
    """The loop as the tutorials write it; torch.compile changes only how the model is called. In bf16 the parameters and the optimizer's
    moments are bf16 and nothing is fp32, or, with autocast, everything is fp32 but the operations that autocast casts for."""

    def __init__(self, spec, model):
        self.accumulate = spec["accumulate"]
        self.autocast = spec["dtype"] == "bf16" and (spec["autocast"] or spec["engine"] == "ddp")
        if spec["dtype"] == "bf16" and not self.autocast and spec["engine"] in ("plain", "compile"):
            model = model.to(torch.bfloat16)
        self.optimizer = make_optimizer(model)
        self.model = torch.compile(model) if spec["engine"] == "compile" else model

    def keep_local(self, last):
        return contextlib.nullcontext()

    def step(self, micro_batches):
        total = 0.0
        for i, (x, y) in enumerate(micro_batches):
            with self.keep_local(i + 1 == self.accumulate):
                with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                    loss = loss_of(self.model(x), y)
                (loss / self.accumulate if self.accumulate > 1 else loss).backward()
            total += loss.item()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total / self.accumulate

    def close(self):
        pass


class Ddp(Loop):
    """Gradients are views of DDP's buckets and travel only with the last micro-batch: what a careful user writes."""

    def __init__(self, spec, model):
        torch.distributed.init_process_group("gloo")
        super().__init__(spec, model)
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def keep_local(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def close(self):
        torch.distributed.destroy_process_group()


class Fsdp(Loop):
    """FSDP2, every block and the root sharded and gathered by themselves, gradients reduced with every micro-batch, so that they are shards
    too. Its peak is that of the steps, not of building the whole model first. bf16: bf16 parameters, gradients reduced in fp32."""

    def __init__(self, spec, model):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch.distributed.init_process_group("gloo")
        bf16 = spec["dtype"] == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
        mesh = torch.distributed.init_device_mesh("cpu", (spec["ranks"],))
        for block in model.h.values():
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        super().__init__(spec, model)

    def close(self):
        torch.distributed.destroy_process_group()


class DeepSpeed:
    """A ZeRO stage with torch's fused AdamW: DeepSpeed's own optimizer is measured by `benchmarks/run optim`."""

    def __init__(self, spec, model):
        import deepspeed
        import logging

        deepspeed.utils.logger.setLevel(logging.ERROR)
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        config = {
            "train_micro_batch_size_per_gpu": spec["micro"],
            "gradient_accumulation_steps": spec["accumulate"],
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": spec["zero_stage"], "overlap_comm": False, "contiguous_gradients": True},
            "bf16": {"enabled": spec["dtype"] == "bf16"},
        }
        if spec.get("nvme"):
            config["zero_optimization"].update(offload_of(spec))
            config["aio"] = AIO
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), optimizer=self.optimizer(spec, model), config=config)

    @staticmethod
    def optimizer(spec, model):
        if not spec.get("nvme"):
            return make_optimizer(model)
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # the only one that it offloads

        return DeepSpeedCPUAdam(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, adamw_mode=True)

    def step(self, micro_batches):
        total = 0.0
        for x, y in micro_batches:
            loss = loss_of(self.engine(x), y)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.item()
        return total / len(micro_batches)

    def close(self):
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def peak_rss_bytes():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) * 1024


def main():
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    kind = {"plain": Loop, "compile": Loop, "ddp": Ddp, "fsdp": Fsdp, "deepspeed": DeepSpeed}[spec["engine"]]
    loop = kind(spec, build(spec))
    batches = make_batches(spec, int(os.environ.get("RANK", 0)))
    if spec["ranks"] > 1:
        torch.distributed.barrier()
    step_ms, ended, losses = [], [], []
    for micro_batches in batches:
        start = time.perf_counter()
        losses.append(loop.step(micro_batches))
        ended.append(time.perf_counter())
        step_ms.append((ended[-1] - start) * 1e3)
    print(json.dumps(dict(step_ms=step_ms, ended=ended, losses=losses, peak_rss_bytes=peak_rss_bytes())), flush=True)
    loop.close()


if __name__ == "__main__":
    main()
