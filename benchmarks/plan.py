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
from processes import last_words
from tables import number, print_checks, print_table
from turns import run_alternately

MODEL = {"type": "gpt", "layers": 4, "hidden": 256, "heads": 8, "sequence_length": 128, "vocab_size": 2048}
BATCH = 16
WARMUP = 3  # steps that are left out
TURN_S, CALIBRATION_TURN_S = 1.5, 4  # a calibration takes longer than a run, and ends with them
AT_A_TIME = 11  # layouts whose ranks are in memory together; each waits for the others' turns, which must stay far below the ranks' time-out


def layout(ranks, micro, zero=0, pipe=1, tensor=1, context=1, schedule="1f1b", sequence_parallel=False, recompute=0, activations=None):
    return dict(activations=activations, ranks=ranks, pipe=pipe, data=ranks // (pipe * tensor * context), context=context, tensor=tensor, zero_stage=zero, micro_batch=micro, schedule=schedule,
                chunks=2 if schedule == "interleaved" else 1, sequence_parallel=sequence_parallel, recompute=recompute)


LAYOUTS = [
    layout(1, 16), layout(1, 4), layout(1, 1), layout(1, 4, recompute=1),
    layout(2, 8), layout(2, 4), layout(2, 1), layout(2, 8, zero=1), layout(2, 2, zero=2), layout(2, 8, zero=3),
    layout(2, 1, pipe=2), layout(2, 4, pipe=2), layout(2, 8, pipe=2), layout(2, 2, pipe=2, schedule="zero-bubble"), layout(2, 4, pipe=2, schedule="interleaved"),
    layout(2, 16, pipe=2), layout(2, 4, pipe=2, recompute=1), layout(2, 4, recompute=1),
    layout(2, 8, tensor=2), layout(2, 8, tensor=2, sequence_parallel=True), layout(2, 8, context=2),
    layout(1, 1, recompute=1), layout(2, 1, zero=3), layout(2, 1, tensor=2), layout(4, 1, zero=3), layout(4, 1, tensor=4), layout(4, 1, pipe=4),
    layout(1, 16, activations=dict(policy="nvme")), *(layout(1, 16, activations=dict(policy="auto", memory_budget=budget)) for budget in ("120MB", "80MB", "50MB")),
    layout(2, 8, activations=dict(policy="auto", memory_budget="40MB")), layout(2, 4, pipe=2, activations=dict(policy="auto", memory_budget="30MB")),
    layout(4, 4), layout(4, 4, zero=1), layout(4, 2, pipe=2, zero=1), layout(4, 2, pipe=2, tensor=2), layout(4, 4, tensor=2),
]


def name_of(row):
    text = f"{row['pipe']} x {row['data']} x {row['context']} x {row['tensor']}, ZeRO {row['zero_stage']}, micro {row['micro_batch']}"
    text += f", {row['schedule']}" if row["pipe"] > 1 else ""
    text += ", recomputed" if row["recompute"] else ""
    if row["activations"]:
        text += ", activations " + " ".join(row["activations"].values())
    return text + (", sequence parallel" if row["sequence_parallel"] else "")


def activation_keys(row, folder):
    """--set for both: files may be used."""
    return ["--set", "engine.activation_checkpointing=" + json.dumps(dict(row["activations"], nvme_path=str(folder / "moved")))] if row["activations"] else []


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


def plan_command(trireme, folder, name):
    """Prints all rows of the plan."""
    return [str(trireme), "plan", str(folder / "run.json"), "--cluster", str(folder / f"{name}.json"), "--best", "100000", "--json"]


def rows_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def planned_with(trireme, folder, row, name):
    """The row of a layout in the plan of a run that says what becomes of activations, on a machine that was measured already."""
    done = subprocess.run(plan_command(trireme, folder, name) + activation_keys(row, folder), capture_output=True, text=True, timeout=TIMEOUT_S)
    return row_of(rows_of(done.stdout), row)


def row_of(rows, wanted):
    """The planned row of a layout."""
    keys = [key for key in wanted if key not in ("ranks", "schedule", "activations") or (key == "schedule" and wanted["pipe"] > 1)]
    return next((row for row in rows if row["offload"] is None and row["refused"] is None and all(row[key] == wanted[key] for key in keys)), None)


# What `trireme estimate --measure` sets: evaluation and sampling would take memory of their own.
TRAINING_ONLY = [word for value in ("training.eval_every=0", "training.eval_batches=1", "training.sample=null", "training.checkpoint_every=0") for word in ("--set", value)]
RETURNS_ALL = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc gives back what is freed: what is left is what the run has allocated


def train_command(trireme, folder, row, name, extra=()):
    return [str(trireme), "train", str(folder / "run.json"), "-n", str(row["ranks"]), "--out", str(folder / name)] + overrides(row) + activation_keys(row, folder) + TRAINING_ONLY + list(extra)


def metrics(folder, name):
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def peak(steps):
    return max(step.get("peak_rss_bytes", 0) for step in steps)


def allocated(trireme, folder, row, name):
    """Largest allocated memory of a short run; or why there is none."""
    command = train_command(trireme, folder, row, name, ("--set", f"training.steps={WARMUP + 1}"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **RETURNS_ALL})
    return (peak(metrics(folder, name)), None) if done.returncode == 0 else (None, last_words(done.stderr))


def lower_quartile(values):
    """Other programs only make steps longer; `trireme plan --calibrate` takes the least and the lower quartile of what it measures too."""
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def measured(trireme, folder, layouts, tag):
    """Runs these layouts and calibrations for their numbers of ranks in turns. Returns the planned row of each, what was found of it, and why others have nothing."""
    calibrated = sorted({row["ranks"] for row in layouts.values()})
    commands = {("plan", ranks): plan_command(trireme, folder, f"cluster-{ranks}-{tag}") + ["--calibrate", "-n", str(ranks)] for ranks in calibrated}
    commands.update((i, train_command(trireme, folder, row, f"out-{i}-{tag}")) for i, row in layouts.items())
    turns = {name: CALIBRATION_TURN_S if isinstance(name, tuple) else TURN_S for name in commands}
    members = run_alternately(commands, turns, TIMEOUT_S)
    plans = {}
    for ranks in calibrated:
        member = members["plan", ranks]
        if member.process.returncode != 0:
            raise RuntimeError(f"trireme plan -n {ranks}: {last_words(member.text(member.errors))}")
        plans[ranks] = rows_of(member.text(member.output))
    planned, found, refused = {}, {}, {}
    for i, row in layouts.items():
        planned[i] = planned_with(trireme, folder, row, f"cluster-{row['ranks']}-{tag}") if row["activations"] else row_of(plans[row["ranks"]], row)
        if not planned[i]:
            refused[i] = "the plan has no such layout"
        elif members[i].process.returncode != 0:
            refused[i] = last_words(members[i].text(members[i].errors))
        else:
            steps = metrics(folder, f"out-{i}-{tag}")
            whole = [step["step_ms"] for step in steps if step["step"] > WARMUP and members[i].was_running(step["wall_time"] - step["step_ms"] / 1000, step["wall_time"])]
            if not whole:
                refused[i] = f"no step was within a turn of {TURN_S} s"
                continue
            found[i] = dict(step_ms=lower_quartile(whole), steps=len(whole), memory_bytes=peak(steps))
    return planned, found, refused


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
        plans = {i: [] for i in found}  # one of each calibration
        for round_number in range(args.rounds):
            order = [i for i in found if i not in refused]
            random.shuffle(order)
            for first in range(0, len(order), AT_A_TIME):
                rows, results, reasons = measured(installed.trireme, folder, {i: layouts[i] for i in sorted(order[first:first + AT_A_TIME])}, f"{round_number}-{first}")
                refused.update(reasons)
                for i, said in rows.items():
                    plans[i].extend([said] if said else [])
                for i, result in results.items():
                    found[i].append(result)
        memory = {}
        for i in found:
            if i not in refused:
                memory[i], why = allocated(installed.trireme, folder, layouts[i], f"allocated-{i}")
                if why:
                    refused[i] = why
    lines, pairs = [], []
    for i, row in enumerate(layouts):
        if i in refused:
            print(f"NOT MEASURED {name_of(row)}: {refused[i]}")
            continue
        step, resident = (statistics.median(result[key] for result in found[i]) for key in ("step_ms", "memory_bytes"))
        planned_ms, planned_bytes = (statistics.median(one[key] for one in plans[i]) for key in ("step_ms", "memory_bytes"))
        pair = dict(benchmark="plan", layout=name_of(row), planned_ms=planned_ms, measured_ms=step, step_error=planned_ms / step - 1,
                    steps=sum(result["steps"] for result in found[i]), planned_bytes=planned_bytes,
                    allocated_bytes=memory[i], allocated_error=planned_bytes / memory[i] - 1, measured_bytes=resident, memory_error=planned_bytes / resident - 1)
        record(pair)
        pairs.append(pair)
        percent = {key: f"{100 * pair[key]:+.1f} %" for key in ("step_error", "allocated_error", "memory_error")}
        lines.append([name_of(row), str(row["ranks"]), number(planned_ms), number(step), percent["step_error"], number(planned_bytes, 0, 1e6),
                      number(memory[i], 0, 1e6), percent["allocated_error"], number(resident, 0, 1e6), percent["memory_error"]])
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
