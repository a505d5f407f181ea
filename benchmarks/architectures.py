"""`benchmarks/run architectures`: the ways in which ranks can agree on one model, on the same model and data, over links of several speeds. Standard library only."""
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from curves import write_page
from engines import ROOT, TIMEOUT_S
from one_host import one_host
from processes import Failed
from tables import number, print_table
from two_hosts import TwoHosts, why_not

RANKS_A_HOST = 2
WORKERS = 2 * RANKS_A_HOST
WARMUP = 5  # steps left out of the means
LINKS = {"free": None, "1gbit": "1gbit", "100mbit": "100mbit"}
SMOOTH = 20  # steps whose mean is a training loss of the table
MODEL = {"type": "gpt", "layers": 2, "hidden": 64, "heads": 4, "sequence_length": 64, "vocab_size": 256}
ADAM = {"lr": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}


def server(mode, **keys):
    return lambda steps: ({"parallel": {"sync": {"kind": "server", "servers": 2, "mode": mode, **keys}}}, {})


def engine(keys, variables=None):
    return lambda steps: ({"engine": keys}, variables or {})


# name: steps -> (what is merged into the run file, variables)
WAYS = {
    "two-level": engine({}),
    "ring": engine({"gradient_allreduce_algorithm": "ring"}, {"TRIREME_BACKEND": "gloo"}),
    "tree": engine({"gradient_allreduce_algorithm": "tree"}, {"TRIREME_BACKEND": "gloo"}),
    "server sync": server("sync"),
    "server async": server("async"),
    "server stale": server("stale", staleness=3),
    "server hybrid": server("hybrid", timeout_s=0.05),
    "server hybrid, 15 ms": server("hybrid", timeout_s=0.015),
    "local SGD": lambda steps: ({"engine": {"parameter_averaging": {"every": 10}}}, {}),
    "DiLoCo": lambda steps: ({"engine": {"parameter_averaging": {"every": 50, "outer_optimizer": "nesterov", "start_step": steps // 5}}}, {}),
    "1-bit Adam": lambda steps: ({"engine": {"optimizer": {"type": "OneBitAdam", "params": {**ADAM, "freeze_step": steps * 15 // 100}}}}, {}),
}
# Which of them feel a worker that is four times as slow, and how.
WITH_A_SLOW_WORKER = ["two-level", "local SGD", "server sync", "server async", "server stale", "server hybrid", "server hybrid, 15 ms"]


def merged(base, change):
    out = dict(base)
    for key, value in change.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) and key != "optimizer" else value
    return out


def run_file(args, change):
    base = {"model": MODEL,
            "data": {"type": "text", "train": [str(args.text)], "validation": [str(args.validation)], "tokenizer": "bytes"},
            "training": {"steps": args.steps, "seed": 1234, "eval_every": args.steps, "eval_batches": 50, "keep_checkpoints": 1},
            "engine": {"train_batch_size": 4 * WORKERS, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": ADAM},
                       "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": args.steps, "warmup_num_steps": args.steps // 20, "cos_min_ratio": 0.02}}}}
    return merged(base, change)


def run_one(installed, args, hosts, name, folder, slow_s=0.0):
    change, variables = WAYS[name](args.steps)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    (folder / "run.json").write_text(json.dumps(run_file(args, change)))
    hosts.write_hostfile(folder / "hosts", RANKS_A_HOST)
    command = [str(installed.trireme), "train", str(folder / "run.json"), "--hostfile", str(folder / "hosts"), "--rsh", "ip netns exec", "--out", str(out)]
    variables = dict(variables, OMP_NUM_THREADS="1", NO_COLOR="1")
    if slow_s:
        variables["TRIREME_FAULT"] = f"rank={WORKERS - 1},phase=backward,kind=delay,seconds={slow_s:.4f}"
    for key, value in variables.items():
        command += ["--env", f"{key}={value}"]
    before = hosts.sent_bytes()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(os.environ, **variables))
    except subprocess.TimeoutExpired as late:
        raise Failed(f"no end after {TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}: {' '.join((done.stderr or done.stdout).strip().splitlines()[-2:])[:300]}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "loss" in row and "step_ms" in row]
    times = list(itertools.accumulate(row["step_ms"] / 1e3 for row in steps))
    return dict(way=name, steps=len(steps), step_ms=1e3 * (times[-1] - times[WARMUP - 1]) / (len(steps) - WARMUP), total_s=times[-1], times=times,
                losses=[row["loss"] for row in steps], val_loss=next((row["val_loss"] for row in reversed(rows) if row.get("val_loss") is not None), None),
                link_bytes=(hosts.sent_bytes() - before) / len(steps), rank_bytes=statistics.median(row["comm_bytes"] for row in steps[WARMUP:]))


def loss_at(row, seconds):
    """The mean training loss of the steps before that time."""
    reached = sum(1 for t in row["times"] if t <= seconds)
    window = row["losses"][max(0, reached - SMOOTH):reached]
    return statistics.mean(window) if window else None


def print_link(rows, label):
    """One table: `rows` of one link, one for each way (of several rounds the medians of times and bytes; losses of the first)."""
    equal_s = min(row["total_s"] for row in rows)
    base = rows[0]
    print(f"\n## {label}\n")
    lines = []
    for row in rows:
        lines.append([row["way"], number(row["link_bytes"], 0, 1e3), number(base["link_bytes"] / row["link_bytes"], 2), number(row["step_ms"], 1), number(base["step_ms"] / row["step_ms"], 2),
                      number(loss_at(row, row["total_s"]), 3), number(row["val_loss"], 3), number(loss_at(row, equal_s), 3)])
    print_table(["", "kB a step over the cable", "x fewer", "ms a step", "x faster", "loss at the end", "validation", f"loss after {equal_s:.1f} s"], lines)


def medians(rounds):
    return dict(rounds[0], **{key: statistics.median(row[key] for row in rounds) for key in ("step_ms", "total_s", "link_bytes", "rank_bytes")})


def architectures(installed, args, record):
    if reason := why_not():
        print(f"SKIPPED: {reason}")
        record(dict(benchmark="architectures", skipped=reason))
        return
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-"))
    results = {}

    def measure(hosts, label, name, n, slow_s=0.0):
        try:
            row = run_one(installed, args, hosts, name, folder, slow_s)
            results.setdefault(label, {}).setdefault(name, []).append(row)
            record(dict({k: v for k, v in row.items() if k not in ("times", "losses")}, benchmark="architectures", link=label, round=n + 1))
            said = f"{row['step_ms']:.1f} ms a step, {row['link_bytes'] / 1e3:.0f} kB a step, loss {loss_at(row, row['total_s']):.3f}"
        except Failed as failure:
            record(dict(benchmark="architectures", engine=name, size=label, round=n + 1, failed=str(failure)))
            said = f"FAILED, {failure}"
        print(f"{label} {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)

    try:
        with TwoHosts() as hosts:
            for n in range(args.rounds):
                for link in args.links:
                    hosts.limit(LINKS[link])
                    for name in args.ways[n % len(args.ways):] + args.ways[:n % len(args.ways)]:
                        measure(hosts, link, name, n)
            slow = [name for name in args.ways if name in WITH_A_SLOW_WORKER]
            if args.slow > 1 and slow:
                hosts.limit(None)
                alone_s = min(row["step_ms"] for rows in results.get(args.links[0], {}).values() for row in rows) / 1e3 if results else 0.02
                for n in range(args.rounds):
                    for name in slow:
                        measure(hosts, f"one of {WORKERS} workers {args.slow:g} times as slow", name, n, (args.slow - 1) * alone_s)
        tables = print_tables(args, results)
        if args.one_host:
            one_host(installed, args, record, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_page(args.chart, "Architectures of data-parallel training", tables)
    print(f"chart: {args.chart}")


def print_tables(args, results):
    tables = {label: [medians(ways[name]) for name in args.ways if name in ways] for label, ways in results.items()}
    print(f"GPT of {MODEL['layers']} layers, hidden {MODEL['hidden']}, on the novels; {args.steps} steps of {4 * WORKERS} samples, {WORKERS} workers on two hosts.")
    for label, rows in tables.items():
        print_link(rows, label)
    print("kB over the cable: both directions, headers, the start and the evaluation included. Loss: mean of the last", SMOOTH, "steps; of a server's way without waiting, those of one worker.")
    return tables
