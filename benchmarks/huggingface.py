#!/usr/bin/env python3
"""A Hugging Face folder trained by `trireme train` beside transformers on the same tokens: losses, memory and tokens/s.

    .venv/bin/python benchmarks/huggingface.py data/smollm2 data/austen/train.txt equal   losses before training and after 10 steps, on 1 rank and in layouts
    .venv/bin/python benchmarks/huggingface.py data/smollm2 data/austen/train.txt memory  `trireme estimate` beside what a run takes
    .venv/bin/python benchmarks/huggingface.py data/smollm2 data/austen/train.txt speed   tokens/s beside PyTorch eager and torch.compile, fp32 and bf16, in turns

All use the cores that this process may use. In bf16 transformers holds parameters and states of AdamW in bf16, trireme fp32 masters and states beside bf16 parameters.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from turns import rotated

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEARNING_RATE, WEIGHT_DECAY, CLIP = 2e-5, 0.01, 1.0
# Heads are split among tensor ranks: their number divides the heads, and divides those of keys or is a multiple of them.
LAYOUTS = {"1 rank": {}, "data 2, ZeRO 3": {"ranks": 2, "stage": 3}, "pipe 2": {"parallel": {"pipe": 2}}, "tensor {tensor}": {"parallel": {"tensor": "{tensor}"}}, "context 2": {"parallel": {"context": 2}}}


def peer(spec):
    """In a process of its own: transformers, as the tutorials write a loop."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import resource
    import time

    import numpy
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    length, batch = spec["length"], spec["batch"]
    tokens = torch.from_numpy(numpy.fromfile(spec["tokens"], dtype="<u2").astype("int64"))
    model = AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=getattr(torch, {"fp32": "float32", "bf16": "bfloat16"}[spec["dtype"]]))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    call = torch.compile(model) if spec["engine"] == "compile" else model
    losses, step_ms = [], []
    for step in range(spec["steps"]):
        rows = torch.stack([tokens[i * length:i * length + length + 1] for i in range(step * batch, step * batch + batch)])
        start = time.perf_counter()
        logits = call(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        step_ms.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"losses": losses, "step_ms": step_ms, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}))


def run_file(spec):
    engine = {"train_batch_size": spec["batch"], "gradient_clipping": CLIP, "zero_optimization": {"stage": spec.get("stage", 0)}, "bf16": {"enabled": spec["dtype"] == "bf16"},
              "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}}}
    return {"model": {"from": spec["folder"], "sequence_length": spec["length"]}, "data": {"type": "tokens", "train": [spec["tokens"]], "shuffle": False},
            "training": {"steps": spec["steps"]}, "parallel": spec.get("parallel", {}), "engine": engine}


def ours(spec, trireme):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "run.json").write_text(json.dumps(run_file(spec)))
        ranks = spec.get("ranks", 1)
        for size in spec.get("parallel", {}).values():
            ranks *= size
        done = subprocess.run([trireme, "train", work / "run.json", "-n", str(ranks), "--out", work / "out"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"trireme train failed: {done.stdout}{done.stderr}")
        rows = [json.loads(line) for line in (work / "out/metrics.jsonl").read_text().splitlines()]
        return {"losses": [row["loss"] for row in rows], "step_ms": [row["step_ms"] for row in rows], "peak_mb": max(row["peak_rss_bytes"] for row in rows) / 1e6}


def run(spec, trireme):
    if spec["engine"] == "trireme":
        return ours(spec, trireme)
    done = subprocess.run([sys.executable, __file__, json.dumps(spec)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{spec['engine']} failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def equal(spec, args):
    spec = dict(spec, dtype="fp32", length=128, batch=4, steps=11)
    expected = run(dict(spec, engine="eager"), args.trireme)["losses"]
    print(f"{'':<16} {'loss before':>12} {'after 10':>12} {'largest difference':>19}")
    print(f"{'transformers':<16} {expected[0]:12.6f} {expected[10]:12.6f}", flush=True)
    for name, layout in LAYOUTS.items():
        layout = json.loads(json.dumps(layout).replace('"{tensor}"', str(args.tensor)))
        losses = run(dict(spec, engine="trireme", **layout), args.trireme)["losses"]
        print(f"{name.format(tensor=args.tensor):<16} {losses[0]:12.6f} {losses[10]:12.6f} {max(abs(a - b) for a, b in zip(losses, expected)):19.1e}", flush=True)


def memory(spec, args):
    print(f"{'dtype':<6} {'layout':<16} {'estimated MB':>13} {'measured MB':>12} {'ratio':>6}")
    for dtype in args.dtypes.split(","):
        for name in ("1 rank", "data 2, ZeRO 3"):
            with tempfile.TemporaryDirectory() as work:
                file = pathlib.Path(work) / "run.json"
                one = dict(spec, dtype=dtype, steps=3, **LAYOUTS[name])
                ranks = one.get("ranks", 1)
                file.write_text(json.dumps(run_file(dict(one, batch=one["batch"] * ranks))))
                done = subprocess.run([args.trireme, "estimate", file, "-n", str(ranks), "--measure", "3", "--json"], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"trireme estimate failed: {done.stdout}{done.stderr}")
            found = json.loads(done.stdout)
            estimated, measured = found["peak_bytes"] / 1e6, found["measured"]["peak_rss_bytes"] / 1e6
            print(f"{dtype:<6} {name:<16} {estimated:13.0f} {measured:12.0f} {estimated / measured:6.3f}", flush=True)


def speed(spec, args):
    for dtype in args.dtypes.split(","):
        engines = args.engines.split(",")
        found = {engine: [] for engine in engines}
        for turn in range(args.rounds):
            for engine in rotated(engines, turn):
                found[engine].append(run(dict(spec, dtype=dtype, engine=engine), args.trireme))
        print(f"\n{dtype}, {spec['batch']} x {spec['length']} tokens a step, medians of {args.rounds} runs of {spec['steps']} steps, the first {args.warmup} left out")
        print(f"{'engine':<10} {'step ms':>9} {'over runs':>17} {'tokens/s':>9} {'peak MB':>8} {'trireme is faster':>18}")
        steps = {engine: [statistics.median(row["step_ms"][args.warmup:]) for row in rows] for engine, rows in found.items()}
        for engine in engines:
            step = statistics.median(steps[engine])
            ratio = statistics.median(theirs / mine for theirs, mine in zip(steps[engine], steps["trireme"])) if engine != "trireme" and "trireme" in steps else None
            print(f"{engine:<10} {step:9.0f} {min(steps[engine]):8.0f}..{max(steps[engine]):<7.0f} {spec['batch'] * spec['length'] / step * 1e3:9.1f} "
                  f"{statistics.median(row['peak_mb'] for row in found[engine]):8.0f} {'' if ratio is None else f'{ratio:.2f}x':>18}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("what", choices=["equal", "memory", "speed"])
    parser.add_argument("--trireme", type=pathlib.Path, default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--tensor", type=int, default=3, help="tensor ranks of `equal` (SmolLM2 has 9 heads: 3 or 9)")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--engines", default="trireme,eager,compile")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        import numpy
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(args.folder / "tokenizer.json")).encode(args.text.read_text()[:400_000], add_special_tokens=False).ids
        tokens = pathlib.Path(work) / "tokens.bin"
        numpy.array(ids, dtype="<u2").tofile(tokens)
        spec = {"folder": str(args.folder.resolve()), "tokens": str(tokens), "length": args.length, "batch": args.batch, "steps": args.steps}
        {"equal": equal, "memory": memory, "speed": speed}[args.what](spec, args)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        peer(json.loads(sys.argv[1]))
    else:
        main()
