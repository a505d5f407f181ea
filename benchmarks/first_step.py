#!/usr/bin/env python3
"""Seconds from the command to the first training step of a Hugging Face folder on text that is tokenized already: `trireme train` beside PyTorch, in turns.

    .venv/bin/python benchmarks/first_step.py data/smollm2 data/austen/train.txt    2 ranks, bf16 "auto", ZeRO 1, 3 rounds

The peer is transformers and DistributedDataParallel under torchrun, with the same tokens in a .npy file. Its step begins when the first batch goes into the model. Ours begins
at the time of the step's end less its duration (metrics.jsonl). Steps are short: a sample of 32 tokens on each rank. CPU seconds are those of all processes and the step.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from turns import rotated

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARD_HEADER = 128  # bytes; the number of tokens is at 24 (trireme/data/token_files/shard_format.h)


def peer(spec):
    """A rank of torchrun: a loop as the tutorials write it."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import numpy
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tokens = numpy.load(spec["tokens"], mmap_mode="r")
    model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=torch.bfloat16).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    length = spec["length"]
    row = torch.from_numpy(tokens[rank * length:rank * length + length + 1].astype("int64")).unsqueeze(0)
    begin = time.time()
    logits = model(row[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), row[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 0:
        print(json.dumps({"begin": begin, "end": time.time()}), flush=True)
    torch.distributed.destroy_process_group()


def run_file(spec):
    engine = {"train_batch_size": spec["ranks"], "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}}
    return {"model": {"from": spec["folder"], "sequence_length": spec["length"]}, "data": {"type": "text", "train": [spec["text"]]}, "training": {"steps": 1}, "engine": engine}


def timed(command, env=None):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stdout}{done.stderr}")
    return done, start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(spec, args, work):
    (work / "run.json").write_text(json.dumps(run_file(spec)))
    out = pathlib.Path(tempfile.mkdtemp(dir=work))  # the tokens are beside it
    _, start, cpu = timed([args.trireme, "train", work / "run.json", "-n", str(spec["ranks"]), "--out", out])
    row = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    return {"begin_s": row["wall_time"] - row["step_ms"] / 1e3 - start, "end_s": row["wall_time"] - start, "cpu_s": cpu}


def theirs(spec):
    done, start, cpu = timed([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(spec["ranks"]), __file__, json.dumps(spec)], dict(os.environ, OMP_NUM_THREADS="1"))
    row = json.loads(done.stdout.splitlines()[-1])
    return {"begin_s": row["begin"] - start, "end_s": row["end"] - start, "cpu_s": cpu}


def write_tokens(work, file):
    """The tokens of Trireme's cache as numpy's file."""
    import numpy

    shard = next((work / ".tokens").glob("*/train/*"))
    data = shard.read_bytes()
    width, count = int.from_bytes(data[12:16], "little"), int.from_bytes(data[24:32], "little")
    numpy.save(file, numpy.frombuffer(data, dtype=f"<u{width}", offset=SHARD_HEADER, count=count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--trireme", type=pathlib.Path, default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="trireme,ddp")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trireme-first-step-") as work:
        work = pathlib.Path(work)
        spec = {"folder": str(args.folder.resolve()), "text": str(args.text.resolve()), "length": args.length, "ranks": args.ranks, "tokens": str(work / "tokens.npy")}
        ours(spec, args, work)  # tokenizes
        engines = args.engines.split(",")
        if "ddp" in engines:
            write_tokens(work, spec["tokens"])
        found = {engine: [] for engine in engines}
        for turn in range(args.rounds):
            for engine in rotated(engines, turn):
                found[engine].append(ours(spec, args, work) if engine == "trireme" else theirs(spec))
    print(f"{args.ranks} ranks, medians of {args.rounds} runs in turns\n{'engine':<10} {'to the first step, s':>21} {'over runs':>14} {'to its end, s':>14} {'CPU s':>7} {'trireme is faster':>18}")
    for engine, rows in found.items():
        begins = [row["begin_s"] for row in rows]
        ratio = statistics.median(their["begin_s"] / our["begin_s"] for their, our in zip(rows, found["trireme"])) if engine != "trireme" and "trireme" in found else None
        print(f"{engine:<10} {statistics.median(begins):21.2f} {min(begins):7.2f}..{max(begins):<5.2f} {statistics.median(row['end_s'] for row in rows):14.2f} "
              f"{statistics.median(row['cpu_s'] for row in rows):7.1f} {'' if ratio is None else f'{ratio:.1f}x':>18}")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        peer(json.loads(sys.argv[1]))
    else:
        main()
