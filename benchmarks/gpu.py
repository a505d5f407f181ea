#!/usr/bin/env python3
"""Training steps on a GPU: Trireme beside PyTorch's eager loop, the same GPT and the same tokens, in turns.

  benchmarks/gpu.py [--bin build/release/bin] [--sizes small,large] [--rounds 3] [--steps 20]

Runs under a Python that has torch with CUDA. "autocast": fp32 parameters, bf16 by operation, fused AdamW. "bf16": bf16 parameters with fp32 masters.
"offload": bf16, masters and states on the host, Trireme alone."""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

from workloads import BETAS, EPSILON, LEARNING_RATE, SEED, WEIGHT_DECAY, write_run_file, write_tokens  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SIZES = {
    "small": dict(layers=12, hidden=768, heads=12, length=1024, vocab=50304, micro=16),
    "large": dict(layers=24, hidden=2048, heads=16, length=1024, vocab=50304, micro=8),
}
WARMUP = 5
TIMEOUT_S = 300
WAYS = {  # the type of parameters, and what else a run file says
    "autocast": ("fp32", ["engine.torch_autocast.enabled=true", "engine.torch_autocast.dtype=bfloat16"]),
    "bf16": ("bf16", []),
    "offload": ("bf16", ["engine.zero_optimization.stage=1", "engine.zero_optimization.offload_optimizer.device=cpu"]),
}


def peer(spec):
    """PyTorch's loop. It reads the loss after each step, as Trireme does."""
    import numpy
    import torch

    from python_gpt import build, loss as loss_of

    tokens = torch.from_numpy(numpy.fromfile(spec["tokens"], dtype="<u2").astype("int64"))
    model = build(spec).cuda()
    masters = None
    if spec["dtype"] == "bf16":
        masters = [p.detach().clone() for p in model.parameters()]
        model = model.to(torch.bfloat16)
    trained = masters or list(model.parameters())
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True)
    samples, length = spec["micro"], spec["length"]
    step_ms, losses = [], []
    for step in range(spec["steps"]):
        rows = tokens[step * samples * length: (step + 1) * samples * length + 1].pin_memory()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        rows = rows.cuda(non_blocking=True)
        x, y = rows[:-1].view(samples, length), rows[1:].view(samples, length)
        with torch.autocast("cuda", torch.bfloat16, enabled=masters is None):
            loss = loss_of(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if masters:
            for master, parameter in zip(masters, model.parameters()):
                master.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(list(model.parameters()), masters)
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        step_ms.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(dict(step_ms=step_ms, losses=losses, peak_bytes=torch.cuda.max_memory_allocated())))


def trireme(spec, options, folder):
    write_run_file(folder / "run.json", spec)
    settings = [word for setting in ["training.device=cuda", "engine.gradient_clipping=1.0", *WAYS[spec["way"]][1]] for word in ("--set", setting)]
    done = subprocess.run([str(options.bin / "trireme"), "train", str(folder / "run.json"), "--out", str(folder / "out"), *settings, *options.arguments],
                          timeout=TIMEOUT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme train ended with {done.returncode}:\n{done.stdout}")
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return dict(step_ms=[row["step_ms"] for row in rows], losses=[row["loss"] for row in rows], peak_bytes=rows[-1].get("device_peak_bytes", 0))


def measure(engine, spec, options):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = dict(spec, tokens=str(folder / "tokens.bin"))
        write_tokens(Path(spec["tokens"]), spec)
        if engine == "trireme":
            return trireme(spec, options, folder)
        done = subprocess.run([sys.executable, __file__, "--peer", json.dumps(spec)], check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin", help="folder of the program trireme")
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=list(SIZES))
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each run")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="more for trireme train, after --")
    options = parser.parse_args()
    if options.peer:
        return peer(json.loads(options.peer))
    print(f"{'size':8} {'way':10} {'engine':8} {'step ms':>9} {'tokens/s':>9} {'TFLOP/s':>8} {'GPU GB':>7}  loss first, last", flush=True)
    for size in options.sizes:
        for way in options.ways:
            spec = dict(SIZES[size], way=way, dtype=WAYS[way][0], steps=WARMUP + options.steps, seed=SEED, accumulate=1, ranks=1, zero_stage=0, shard_all=False)
            medians = {}
            for _ in range(options.rounds):
                for engine in ("torch", "trireme"):
                    if engine == "trireme" or way != "offload":
                        seen = measure(engine, spec, options)
                        medians.setdefault(engine, []).append((statistics.median(seen["step_ms"][WARMUP:]), seen))
            for engine, runs in medians.items():
                ms, (_, seen) = statistics.median(one for one, _ in runs), runs[0]
                tokens = spec["micro"] * spec["length"]
                hidden, layers = spec["hidden"], spec["layers"]
                flops = tokens * (6 * (12 * layers * hidden * hidden + spec["vocab"] * hidden) + 6 * layers * hidden * spec["length"])
                print(f"{size:8} {way:10} {engine:8} {ms:9.2f} {tokens / ms * 1e3:9.0f} {flops / ms / 1e9:8.1f} {seen['peak_bytes'] / 1e9:7.2f}  {seen['losses'][0]:.5f} {seen['losses'][-1]:.5f}", flush=True)
            if len(medians) == 2:
                ratios = [ours / theirs for (ours, _), (theirs, _) in zip(medians["trireme"], medians["torch"])]
                print(f"{size:8} {way:10} trireme / torch: {statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
