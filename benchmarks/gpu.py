#!/usr/bin/env python3
"""Training steps on a GPU: Trireme beside PyTorch's eager loop and torch.compile, the same model and the same tokens, in turns.

  benchmarks/gpu.py [--bin build/release/bin] [--sizes 124M,350M,1.3B,smollm2] [--ways bf16,autocast,fp32,fp8] [--batches 1,4,16,32] [--rounds 3] [--steps 20]

Runs under a Python that has torch with CUDA (transformers too for smollm2, a Hugging Face folder). "autocast": fp32 parameters, bf16 by operation.
"bf16": bf16 parameters with fp32 masters. "fp32": products in TF32. "fp8": "bf16" with products in FP8, beside peers in bf16. "offload": bf16, masters and states on the host, Trireme alone. Peers have
fused AdamW, TF32 and, as "compile", mode max-autotune for model and loss.

A step's time is that of N steps by the clock, divided by N, after a warm-up; peers read their losses at the end. tokens/s, TFLOP/s and MFU follow from it:
MFU counts products and causal attention, without recomputation, over the peak of the GPU's data sheet or, for a GPU without one, of a measured product;
that of "fp8" is over the peak of bf16, so that it can pass 100 %."""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

from processes import Failed, run_command  # noqa: E402
from turns import rotated  # noqa: E402
from workloads import BETAS, EPSILON, LEARNING_RATE, SEED, WEIGHT_DECAY, write_run_file, write_tokens  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
GPT = dict(length=1024, vocab=50304)
SIZES = {
    "124M": dict(GPT, layers=12, hidden=768, heads=12),
    "350M": dict(GPT, layers=24, hidden=1024, heads=16),
    "1.3B": dict(GPT, layers=24, hidden=2048, heads=16),
    "smollm2": dict(length=1024, folder=str(ROOT / "data" / "smollm2")),
    "tiny": dict(layers=2, hidden=64, heads=2, length=32, vocab=256),  # for tests
}
WARMUP = 5
TIMEOUT_S = 600
MANY_PARAMETERS = 200_000_000  # then a peer draws its weights on the GPU: other values, the same speed
WAYS = {  # the type of parameters, and what else a run file says
    "bf16": ("bf16", []),
    "autocast": ("fp32", ["engine.torch_autocast.enabled=true", "engine.torch_autocast.dtype=bfloat16"]),
    "fp32": ("fp32", []),
    "fp8": ("bf16", ["engine.fp8.enabled=true"]),
    "offload": ("bf16", ["engine.zero_optimization.stage=1", "engine.zero_optimization.offload_optimizer.device=cpu"]),
}
ENGINES = ("trireme", "graph", "eager", "compile")  # graph: trireme with training.cuda_graph=true


def shape_of(size, smollm2=None):
    """A size with what its Hugging Face folder says: matrices are the numbers that a token is multiplied by."""
    spec = dict(SIZES[size])
    if "folder" not in spec:
        spec["matrices"] = 12 * spec["layers"] * spec["hidden"] ** 2 + spec["vocab"] * spec["hidden"]
        return spec
    spec["folder"] = str(Path(smollm2 or spec["folder"]).resolve())
    file = Path(spec["folder"]) / "config.json"
    if not file.exists():
        raise Failed(f"{file} does not exist: name the folder of SmolLM2 (--smollm)")
    config = json.loads(file.read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    keys = hidden * config.get("num_key_value_heads", heads) // heads
    block = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * config["intermediate_size"]
    spec.update(layers=config["num_hidden_layers"], hidden=hidden, heads=heads, vocab=config["vocab_size"])
    spec["matrices"] = spec["layers"] * block + spec["vocab"] * hidden
    return spec


def spec_of(size, way, batch, steps, device="cuda", warmup=WARMUP, smollm2=None):
    return dict(shape_of(size, smollm2), size=size, way=way, dtype=WAYS[way][0], micro=batch, warmup=warmup, steps=warmup + steps, device=device, seed=SEED,
                accumulate=1, ranks=1, zero_stage=0, shard_all=False)


def flops_of_step(spec):
    """Forward and backward: products, and attention to half of the tokens."""
    return spec["micro"] * spec["length"] * (6 * spec["matrices"] + 6 * spec["layers"] * spec["hidden"] * spec["length"])


class Peer:
    """PyTorch's loop, eager or compiled."""

    def __init__(self, spec):
        import torch

        self.torch, self.spec, self.device = torch, spec, torch.device(spec["device"])
        torch.set_float32_matmul_precision("high")  # TF32
        torch.backends.cudnn.allow_tf32 = True
        model = self.model().to(self.device)
        self.masters = None
        if spec["dtype"] == "bf16":
            self.masters = [p.detach().clone() for p in model.parameters()]
            model = model.to(torch.bfloat16)
        self.parameters = list(model.parameters())
        self.loss = (lambda x, y: self.loss_of(model(x), y))
        if spec["engine"] == "compile":
            self.loss = torch.compile(self.loss, mode="max-autotune")
        self.optimizer = torch.optim.AdamW(self.masters or self.parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True)

    def model(self):
        torch, spec = self.torch, self.spec
        if "folder" in spec:
            os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
            from transformers import AutoModelForCausalLM

            self.loss_of = lambda out, y: torch.nn.functional.cross_entropy(out.logits.flatten(0, 1).float(), y.flatten())
            return AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=torch.float32, use_cache=False).train()
        from python_gpt import GPT, build, loss

        self.loss_of = lambda logits, y: loss(logits.float(), y)  # as Trireme: in fp32
        if spec["matrices"] < MANY_PARAMETERS:
            return build(spec)
        with self.device:
            model = GPT(spec)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, 0.0, 0.02)
        return model

    def step(self, rows):
        torch, spec = self.torch, self.spec
        rows = rows.to(self.device, non_blocking=True)
        x, y = rows[:-1].view(spec["micro"], spec["length"]), rows[1:].view(spec["micro"], spec["length"])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=spec["way"] == "autocast"):
            loss = self.loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if self.masters:
            for master, parameter in zip(self.masters, self.parameters):
                master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach().clone()

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def run(self):
        import numpy

        spec, torch = self.spec, self.torch
        tokens = torch.from_numpy(numpy.fromfile(spec["tokens"], dtype="<u2").astype("int64"))
        each = spec["micro"] * spec["length"]
        rows = [tokens[step * each: (step + 1) * each + 1].clone() for step in range(spec["steps"])]
        if self.device.type == "cuda":
            rows = [one.pin_memory() for one in rows]
        losses = [self.step(one) for one in rows[:spec["warmup"]]]
        self.synchronize()
        begin = time.perf_counter()
        losses += [self.step(one) for one in rows[spec["warmup"]:]]
        self.synchronize()
        wall = time.perf_counter() - begin
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        return dict(wall_s=wall, losses=[loss.item() for loss in losses], peak_bytes=peak)


def output_of(command, timeout):
    lines = []
    status = run_command(command, timeout, line=lines.append)
    if status != 0:
        raise Failed(f"exit status {status}: " + " | ".join(lines[-6:]))
    return lines


def objects(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


def trireme(spec, options, folder, timeout):
    write_run_file(folder / "run.json", spec)
    if "folder" in spec:
        run = json.loads((folder / "run.json").read_text())
        run["model"] = {"from": spec["folder"], "sequence_length": spec["length"]}
        (folder / "run.json").write_text(json.dumps(run))
    settings = [f"training.device={spec['device']}", "training.checkpoint_every=0", "engine.gradient_clipping=1.0", *WAYS[spec["way"]][1], *(["training.cuda_graph=true"] if spec["engine"] == "graph" else []), *options.set]
    output_of([options.bin / "trireme", "train", folder / "run.json", "-n", str(spec["ranks"]), "--out", folder / "out", *(word for setting in settings for word in ("--set", setting))], timeout)
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    # step_ms is from the end of a step to that of the next: their sum is the time by the clock
    return dict(wall_s=sum(row["step_ms"] for row in rows[spec["warmup"]:]) / 1e3, losses=[row["loss"] for row in rows], peak_bytes=rows[-1].get("device_peak_bytes", 0))


def measure(engine, spec, options, peaks=None, timeout=TIMEOUT_S):
    """A row; `peaks`: TFLOP/s by dtype of products, as peaks_of() returns. Errors: Failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = dict(spec, engine=engine, tokens=str(folder / "tokens.bin"))
        write_tokens(Path(spec["tokens"]), spec)
        if engine in ("trireme", "graph"):
            seen = trireme(spec, options, folder, timeout)
        else:
            seen = objects(output_of([options.python, __file__, "--peer", json.dumps(spec)], timeout))[-1]
    steps = spec["steps"] - spec["warmup"]
    seconds = seen["wall_s"] / steps
    tflops = flops_of_step(spec) / seconds / 1e12
    row = dict(size=spec["size"], way=spec["way"], batch=spec["micro"], length=spec["length"], engine=engine, steps=steps, step_ms=1e3 * seconds,
               tokens_per_s=spec["micro"] * spec["length"] / seconds, tflops=tflops, peak_bytes=seen["peak_bytes"], first_loss=seen["losses"][0], last_loss=seen["losses"][-1])
    peak = (peaks or {}).get("fp32" if spec["way"] == "fp32" else "bf16")
    return dict(row, mfu=tflops / peak) if peak else row


def peaks_of(rows):
    """Of rows of `trireme bench device`: TFLOP/s of the data sheet, or measured; fp32 is TF32 where there is that."""
    found = {}
    for row in rows:
        if row.get("row") == "product":
            found[row["dtype"]] = row["tflops"] / row.get("of_peak", 1)
    return {"bf16": found.get("bf16"), "fp32": found.get("tf32", found.get("fp32"))}


def print_medians(results):
    engines = {}
    for row in results:
        engines.setdefault(row["engine"], []).append(row)
    for engine, rows in engines.items():
        one = min(rows, key=lambda row: abs(row["step_ms"] - statistics.median(r["step_ms"] for r in rows)))
        mfu = f"{100 * one['mfu']:5.1f}%" if "mfu" in one else "     -"
        print(f"{one['size']:8} {one['way']:9} {one['batch']:5} {engine:8} {one['step_ms']:9.2f} {one['tokens_per_s']:9.0f} {one['tflops']:8.2f} {mfu} "
              f"{one['peak_bytes'] / 1e9:7.2f}  {one['first_loss']:.5f} {one['last_loss']:.5f}", flush=True)
    for peer in engines:
        if peer != "trireme" and "trireme" in engines:
            ratios = [ours["step_ms"] / theirs["step_ms"] for ours, theirs in zip(engines["trireme"], engines[peer])]
            print(f"{'':24} trireme / {peer}: {statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f})", flush=True)


def words(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin", help="folder of the program trireme")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=words, default=[size for size in SIZES if size != "tiny"], metavar=",".join(SIZES))
    parser.add_argument("--ways", type=words, default=[way for way in WAYS if way != "offload"], metavar=",".join(WAYS))
    parser.add_argument("--batches", type=lambda text: [int(word) for word in words(text)], default=[1, 4, 16, 32])
    parser.add_argument("--engines", type=words, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each run")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps before them")
    parser.add_argument("--smollm", help="its folder (default data/smollm2)")
    parser.add_argument("--python", default=sys.executable, help="of the peers")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="changes the run file, as trireme train's --set")
    parser.add_argument("--json", action="store_true", help="a JSON object a line for each run instead of a table")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for given, known, what in ((options.sizes, SIZES, "size"), (options.ways, WAYS, "way"), (options.engines, ENGINES, "engine")):
        for word in given:
            if word not in known:
                parser.error(f"no {what} is named {word}. There are: " + " ".join(known))
    if options.peer:
        print(json.dumps(Peer(json.loads(options.peer)).run()))
        return 0
    try:
        lines = output_of([options.bin / "trireme", "bench", "device", "--device", options.device, "--only", "device,product", "--json",
                             *(["--product", "256"] if options.device == "cpu" else [])], TIMEOUT_S)
    except Failed as failure:
        sys.exit(f"gpu.py: trireme bench device failed: {failure}")
    peaks = peaks_of(objects(lines))
    if not options.json:
        print(f"{'size':8} {'way':9} {'batch':>5} {'engine':8} {'step ms':>9} {'tokens/s':>9} {'TFLOP/s':>8} {'MFU':>6} {'GPU GB':>7}  loss first, last", flush=True)
    failures = 0
    for size in options.sizes:
        for way in options.ways:
            for batch in options.batches:
                engines = [engine for engine in options.engines if way != "offload" or engine == "trireme"]
                results = []
                for turn in range(options.rounds):
                    for engine in rotated(engines, turn):
                        try:
                            spec = spec_of(size, way, batch, options.steps, options.device, options.warmup, options.smollm)
                            row = dict(measure(engine, spec, options, peaks), round=turn + 1)
                            results.append(row)
                        except Failed as failure:
                            failures += 1
                            row = dict(size=size, way=way, batch=batch, engine=engine, round=turn + 1, failed=str(failure))
                            print(f"{size} {way} {batch} {engine}: {failure}", file=sys.stderr, flush=True)
                        if options.json:
                            print(json.dumps(row), flush=True)
                if not options.json:
                    print_medians(results)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
