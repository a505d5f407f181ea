"""`benchmarks/run compressed`: steps on a slow link, plain and compressed, two ranks in two network namespaces with a cable between them. Standard library only; needs root, ip and tc."""
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import TIMEOUT_S
from tables import Results, check, median_of, number, print_checks, print_table
from turns import rotated
from two_hosts import TwoHosts

MODEL = {"type": "gpt", "layers": 6, "hidden": 384, "heads": 6, "sequence_length": 64, "vocab_size": 256}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}
TARGET = 3.5


def one_bit(kind, **params):
    return {"optimizer": {"type": kind, "params": dict({"lr": 1e-4}, **params)}}


def gradients(**compression):
    return {"optimizer": ADAMW, "gradient_compression": compression}


# name: (sections of the engine, steps of a run, the first of those that count). All after the first are in the phase that the name says.
WAYS = {
    "AdamW, gradients in fp32": ({"optimizer": ADAMW}, 9, 4),
    "AdamW, gradients in bf16": ({"optimizer": ADAMW, "communication_data_type": "bf16"}, 9, 4),
    "OneBitAdam, compressed": (one_bit("OneBitAdam", freeze_step=2), 14, 5),
    "OneBitLamb, compressed": (one_bit("OneBitLamb", freeze_step=2), 14, 5),
    "ZeroOneAdam, gradients of a bit": (one_bit("ZeroOneAdam", var_update_scaler=1), 15, 9),  # the second moment moves in steps 1, 2, 4, 8, 16
    "ZeroOneAdam, a meeting in 4 steps": (one_bit("ZeroOneAdam", var_freeze_step=2, var_update_scaler=1, local_step_scaler=1, local_step_clipper=4), 16, 9),
    "gradient_compression sign": (gradients(kind="sign"), 14, 5),
    "gradient_compression eight_bit": (gradients(kind="eight_bit"), 14, 5),
    "gradient_compression top_k 0.01": (gradients(kind="top_k", ratio=0.01), 14, 5),
    "gradient_compression power_sgd 4": (gradients(kind="power_sgd", rank=4), 14, 5),
}
PLAIN = "AdamW, gradients in fp32"


def run_once(trireme, folder, hosts, name):
    sections, steps, first = WAYS[name]
    hosts.write_hostfile(folder / "hosts", slots=1)
    run = {"model": MODEL, "data": {"type": "tokens", "train": "tokens.bin"}, "training": {"steps": steps}, "engine": dict({"train_batch_size": 2}, **sections)}
    (folder / "run.json").write_text(json.dumps(run))
    out = folder / "out"
    done = subprocess.run([str(trireme), "train", str(folder / "run.json"), "--hostfile", str(folder / "hosts"), "--rsh", "ip netns exec", "--out", str(out)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=dict(os.environ, OMP_NUM_THREADS="1"), check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[-400:])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    counted = [row for row in rows if row["step"] >= first]
    subprocess.run(["rm", "-rf", str(out)], check=True)
    return dict(step_ms=statistics.mean(row["step_ms"] for row in counted), comm_bytes=statistics.mean(row["comm_bytes"] for row in counted))


def compressed(installed, args, record):
    trireme = args.build.resolve() / "bin" / "trireme"
    with tempfile.TemporaryDirectory(prefix="trireme-compressed-") as text, TwoHosts() as hosts:
        folder = Path(text)
        random.seed(1)
        (folder / "tokens.bin").write_bytes(array.array("H", [random.randrange(MODEL["vocab_size"]) for _ in range(65 * 200)]).tobytes())
        results = {rate: Results() for rate in args.rates}
        names = [name for name in WAYS if name == PLAIN or not args.ways or any(way in name for way in args.ways)]
        for rate in args.rates:
            hosts.limit(rate)
            for n in range(args.rounds):
                for name in rotated(names, n):
                    try:
                        row = run_once(trireme, folder, hosts, name)
                        said = f"{row['step_ms']:.0f} ms a step, {row['comm_bytes']:.0f} bytes"
                        record(dict(row, benchmark="compressed", engine=name, rate=rate, round=n + 1))
                    except (RuntimeError, subprocess.TimeoutExpired) as failure:
                        row, said = None, f"FAILED, {failure}"
                        record(dict(benchmark="compressed", engine=name, ranks=2, rate=rate, round=n + 1, failed=str(failure)))
                    results[rate].add(name, n, row)
                    print(f"{rate} {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    for rate, result in results.items():
        print(f"\n## {rate}, a GPT of 10.8 million parameters, one sample a rank\n")
        print_table(["", "ms a step", "bytes a rank sends in a step"], [[name, number(median_of(result.of(name), "step_ms"), 0), number(median_of(result.of(name), "comm_bytes"), 0)] for name in names])
        checks = []
        for name in names:
            if name != PLAIN:
                limit = TARGET if name.startswith(("OneBit", "ZeroOne")) else None
                checks.append(check(f"{rate}: steps of {PLAIN} / {name}", result.pairs(lambda a, b: a["step_ms"] / b["step_ms"], PLAIN, name), limit, at_least=True))
                checks.append(check("  the same, bytes", result.pairs(lambda a, b: a["comm_bytes"] / b["comm_bytes"], PLAIN, name), None))
        for row in print_checks(checks):
            record(dict(row, benchmark="compressed", rate=rate))
