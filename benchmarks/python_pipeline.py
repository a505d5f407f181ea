"""Trains the benchmark's GPT as a pipeline in Python: torch.distributed.pipelining or DeepSpeed's PipelineModule. Started by benchmarks/run, once per stage.
Usage: python_pipeline.py SPEC, a JSON object of workloads.py with "engine", "stages" and "schedule"; ranks find each other as in python_loop.py.
Each rank prints the same JSON line as there; "losses" is empty on a rank that does not know them."""
import json
import os
import sys
import time

import torch

from python_gpt import build, loss as loss_of
from python_loop import make_batches, make_optimizer, peak_rss_bytes


class TorchPipeline:
    """1F1B with one stage a rank, or interleaved 1F1B with two, each of the same number of blocks as far as they can be divided."""

    def __init__(self, spec):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

        torch.distributed.init_process_group("gloo")
        rank, ranks, layers = torch.distributed.get_rank(), spec["stages"], spec["layers"]
        chunks = 2 if spec["schedule"] == "interleaved" else 1
        count = ranks * chunks
        cuts = [0] + [1 + round(layers * i / count) for i in range(1, count)] + [layers + 2]
        mine = [rank + ranks * chunk for chunk in range(chunks)]
        modules = [build(spec, cuts[i], cuts[i + 1]) for i in mine]
        stages = [PipelineStage(module, i, count, torch.device("cpu")) for module, i in zip(modules, mine)]
        self.first, self.last = 0 in mine, count - 1 in mine
        if chunks == 1:
            self.schedule = Schedule1F1B(stages[0], spec["accumulate"], loss_fn=loss_of)
        else:
            self.schedule = ScheduleInterleaved1F1B(stages, spec["accumulate"], loss_fn=loss_of)
        self.optimizer = make_optimizer(torch.nn.ModuleList(modules))

    def prepare(self, batches):
        return [tuple(torch.cat(parts) for parts in zip(*micro_batches)) for micro_batches in batches]

    def step(self, batch):
        losses = []
        self.schedule.step(*batch[:1] if self.first else (), **dict(target=batch[1], losses=losses) if self.last else {})
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sum(loss.item() for loss in losses) / len(losses) if self.last else None

    def close(self):
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


class OneLayer(torch.nn.Module):
    def __init__(self, spec, index):
        super().__init__()
        self.layer = build(spec, index, index + 1)

    def forward(self, x):
        return self.layer(x)


class DeepSpeedPipeline:
    """PipelineModule's 1F1B with torch's fused AdamW, cut after half of the layers."""

    def __init__(self, spec):
        import logging

        import deepspeed
        from deepspeed.pipe import LayerSpec, PipelineModule

        deepspeed.utils.logger.setLevel(logging.ERROR)
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        layers = [LayerSpec(OneLayer, spec, i) for i in range(spec["layers"] + 2)]
        model = PipelineModule(layers=layers, num_stages=spec["stages"], loss_fn=loss_of, partition_method="uniform", activation_checkpoint_interval=0)
        config = {
            "train_micro_batch_size_per_gpu": spec["micro"],
            "gradient_accumulation_steps": spec["accumulate"],
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
        }
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), optimizer=make_optimizer(model), config=config)

    def prepare(self, batches):
        return batches

    def step(self, micro_batches):
        return float(self.engine.train_batch(data_iter=iter(micro_batches)))

    def close(self):
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main():
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    loop = {"torch": TorchPipeline, "deepspeed": DeepSpeedPipeline}[spec["engine"]](spec)
    batches = loop.prepare(make_batches(spec, 0))  # one replica: its samples are those of rank 0, on every stage
    torch.distributed.barrier()
    step_ms, ended, losses = [], [], []
    for batch in batches:
        start = time.perf_counter()
        losses.append(loop.step(batch))
        ended.append(time.perf_counter())
        step_ms.append((ended[-1] - start) * 1e3)
    known = losses if None not in losses else []
    print(json.dumps(dict(step_ms=step_ms, ended=ended, losses=known, peak_rss_bytes=peak_rss_bytes(), rank=int(os.environ["RANK"]))), flush=True)
    loop.close()


if __name__ == "__main__":
    main()
