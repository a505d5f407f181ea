"""`benchmarks/run plan`: layouts that `trireme train` measures beside what `trireme plan` says of them. Standard library only."""
import array
import json
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

from engines import TIMEOUT_S
from tables import number, print_checks, print_table

MODEL = {"type": "gpt", "layers": 4, "hidden": 256, "heads": 8, "sequence_length": 128, "vocab_size": 2048}
BATCH = 16
WARMUP = 3  # steps left out of the medians


def layout(ranks, micro, zero=0, pipe=1, tensor=1, context=1, schedule="1f1b", sequence_parallel=False, recompute=0):
    return dict(ranks=ranks, pipe=pipe, data=ranks // (pipe * tensor * context), context=context, tensor=tensor, zero_stage=zero, micro_batch=micro, schedule=schedule,
                chunks=2 if schedule == "interleaved" else 1, sequence_parallel=sequence_parallel, recompute=recompute)


LAYOUTS = [
    layout(1, 16), layout(1, 4), layout(1, 1), layout(1, 4, recompute=1),
    layout(2, 8), layout(2, 4), layout(2, 1), layout(2, 8, zero=1), layout(2, 2, zero=2), layout(2, 8, zero=3),
    layout(2, 1, pipe=2), layout(2, 4, pipe=2), layout(2, 8, pipe=2), layout(2, 2, pipe=2, schedule="zero-bubble"), layout(2, 4, pipe=2, schedule="interleaved"),
    layout(2, 16, pipe=2), layout(2, 4, pipe=2, recompute=1), layout(2, 4, recompute=1),
    layout(2, 8, tensor=2), layout(2, 8, tensor=2, sequence_parallel=True), layout(2, 8, context=2),
    layout(1, 1, recompute=1), layout(2, 1, zero=3), layout(2, 1, tensor=2), layout(4, 1, zero=3), layout(4, 1, tensor=4), layout(4, 1, pipe=4),
    layout(4, 4), layout(4, 4, zero=1), layout(4, 2, pipe=2, zero=1), layout(4, 2, pipe=2, tensor=2), layout(4, 4, tensor=2),
]


def name_of(row):
    text = f"{row['pipe']} x {row['data']} x {row['context']} x {row['tensor']}, ZeRO {row['zero_stage']}, micro {row['micro_batch']}"
    text += f", {row['schedule']}" if row["pipe"] > 1 else ""
    text += ", recomputed" if row["recompute"] else ""
    return text + (", sequence parallel" if row["sequence_parallel"] else "")


def overrides(row):
    """--set for `trireme train`; keys that have their default are left out, so that programs without an axis run the others."""
    values = {"parallel.data": row["data"], "engine.train_micro_batch_size_per_gpu": row["micro_batch"], "engine.zero_optimization.stage": row["zero_stage"]}
    if row["pipe"] > 1:
        values.update({"parallel.pipe": row["pipe"], "parallel.schedule": row["schedule"]})
    if row["chunks"] > 1:
        values["parallel.chunks"] = row["chunks"]
    if row["recompute"]:
        values["engine.pipeline.activation_checkpoint_interval"] = row["recompute"]
    for axis in ("tensor", "context"):
        if row[axis] > 1:
            values[f"parallel.{axis}"] = row[axis]
    if row["sequence_parallel"]:
        values["parallel.sequence_parallel"] = "true"
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def write_run(folder, steps):
    random.seed(1)
    (folder / "tokens.bin").write_bytes(array.array("H", [random.randrange(MODEL["vocab_size"]) for _ in range(BATCH * (MODEL["sequence_length"] + 1) * 40)]).tobytes())
    run = {"model": MODEL, "data": {"type": "tokens", "train": ["tokens.bin"]}, "training": {"steps": steps, "keep_checkpoints": 1},
           "engine": {"train_batch_size": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}}
    (folder / "run.json").write_text(json.dumps(run))


def planned(trireme, folder, ranks):
    """All rows of the plan for so many ranks of this machine, which is measured for it."""
    cluster = folder / f"cluster-{ranks}.json"
    command = [str(trireme), "plan", str(folder / "run.json"), "--cluster", str(cluster), "--calibrate", "-n", str(ranks), "--best", "100000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"trireme plan -n {ranks}: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row_of(rows, wanted):
    """The planned row of a layout."""
    keys = [key for key in wanted if key not in ("ranks", "schedule") or (key == "schedule" and wanted["pipe"] > 1)]
    return next((row for row in rows if row["offload"] is None and row["refused"] is None and all(row[key] == wanted[key] for key in keys)), None)


# What `trireme estimate --measure` sets: evaluation and sampling would take memory of their own.
TRAINING_ONLY = [word for value in ("training.eval_every=0", "training.eval_batches=1", "training.sample=null", "training.checkpoint_every=0") for word in ("--set", value)]
RETURNS_ALL = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc gives back what is freed: what is left is what the run has allocated


def train(trireme, folder, row, name, extra=(), environment=None):
    """Lines of metrics, or why there are none."""
    out = folder / name
    command = [str(trireme), "train", str(folder / "run.json"), "-n", str(row["ranks"]), "--out", str(out)] + overrides(row) + TRAINING_ONLY + list(extra)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no output"])[-1]
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()], None


def peak(steps):
    return max(step.get("peak_rss_bytes", 0) for step in steps)


def measured(trireme, folder, row, number_of_run):
    """Median step, largest resident memory and what of it was allocated; or why the run could not be."""
    steps, why = train(trireme, folder, row, f"out-{number_of_run}")
    returned, why_not = (None, why) if why else train(trireme, folder, row, f"allocated-{number_of_run}", ("--set", f"training.steps={WARMUP + 1}"), RETURNS_ALL)
    if why_not:
        return None, why_not
    times = [step["step_ms"] for step in steps if step["step"] > WARMUP]
    return dict(step_ms=statistics.median(times), memory_bytes=peak(steps), allocated_bytes=peak(returned)), None


def ranks_of(values):
    """Places in order, equal values sharing theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def spearman(a, b):
    a, b = ranks_of(a), ranks_of(b)
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    below = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b)) / below if below else float("nan")


def plan(installed, args, record):
    layouts = [row for row in LAYOUTS if row["ranks"] in args.ranks]
    with tempfile.TemporaryDirectory(prefix="trireme-plan-") as name:
        folder = Path(name)
        write_run(folder, args.steps + WARMUP)
        found = {i: [] for i in range(len(layouts))}
        refused = {}
        for round_number in range(args.rounds):
            # What the machine does changes in ten minutes: each round has a calibration of its own.
            plans = {ranks: planned(installed.trireme, folder, ranks) for ranks in args.ranks}
            for i, row in enumerate(layouts):
                if i in refused:
                    continue
                said = row_of(plans[row["ranks"]], row)
                result, why = measured(installed.trireme, folder, row, f"{round_number}-{i}") if said else (None, "the plan has no such layout")
                if why:
                    refused[i] = why
                else:
                    found[i].append(dict(result, planned_ms=said["step_ms"], planned_bytes=said["memory_bytes"]))
    lines, pairs = [], []
    for i, row in enumerate(layouts):
        if i in refused:
            print(f"NOT MEASURED {name_of(row)}: {refused[i]}")
            continue
        step, memory, allocated, planned_ms, planned_bytes = (statistics.median(result[key] for result in found[i])
                                                              for key in ("step_ms", "memory_bytes", "allocated_bytes", "planned_ms", "planned_bytes"))
        step_error = statistics.median(result["planned_ms"] / result["step_ms"] for result in found[i]) - 1
        pair = dict(benchmark="plan", layout=name_of(row), planned_ms=planned_ms, measured_ms=step, step_error=step_error,
                    planned_bytes=planned_bytes, allocated_bytes=allocated, allocated_error=planned_bytes / allocated - 1,
                    measured_bytes=memory, memory_error=planned_bytes / memory - 1)
        record(pair)
        pairs.append(pair)
        percent = {key: f"{100 * pair[key]:+.1f} %" for key in ("step_error", "allocated_error", "memory_error")}
        lines.append([name_of(row), str(row["ranks"]), number(planned_ms), number(step), percent["step_error"], number(planned_bytes, 0, 1e6),
                      number(allocated, 0, 1e6), percent["allocated_error"], number(memory, 0, 1e6), percent["memory_error"]])
    print_table(["pipe x data x context x tensor", "ranks", "planned ms", "measured ms", "", "planned MB a rank", "allocated MB", "", "resident MB", ""], lines)
    if len(pairs) > 1:
        order = spearman([pair["planned_ms"] for pair in pairs], [pair["measured_ms"] for pair in pairs])
        row = dict(check=f"rank correlation of {len(pairs)} layouts", value=order, target=0.9, held=order >= 0.9, at_least=True)
        checks = [([row["check"], f"{order:.3f}", "", ">= 0.9", "held" if row["held"] else "MISSED"], row)]
        for key, limit in (("step_error", 0.2), ("allocated_error", 0.1), ("memory_error", 0.1)):
            worst = max(abs(pair[key]) for pair in pairs)
            inside = sum(abs(pair[key]) <= limit for pair in pairs)
            checks.append(([f"{key}, farthest", f"{worst:.3f}", f"{inside} of {len(pairs)} within", f"<= {limit:g}", "held" if worst <= limit else "MISSED"],
                           dict(check=f"{key}, farthest", value=worst, target=limit, held=worst <= limit)))
        for checked in print_checks(checks):
            record(dict(checked, benchmark="plan"))
