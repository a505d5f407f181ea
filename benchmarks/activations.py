"""`benchmarks/run activations`: steps with every layer kept, recomputed or moved to files, beside those that "auto" chooses for a range of budgets. Standard library only."""
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from engines import run_engine
from processes import Failed
from tables import Results, check, median_of, number, print_checks, print_table
from turns import rotated
from workloads import make_spec

UNIFORM = ("keep", "recompute", "nvme", "recompute_nvme")
ENGINE = "trireme-1"
MEASURING = 2  # steps before the choice
# A chosen mixture may be slower than the best uniform way by what two runs of the same differ.
SLOWEST = 1.02


def run_one(installed, size, keys, args, folder, record, labels):
    spec = make_spec(size, 1, args.total_threads, args.steps)
    spec["warmup"] += MEASURING
    spec["steps"] += MEASURING
    spec["activations"] = keys
    row = run_engine(installed, ENGINE, spec, folder)
    row.update(labels)
    record(dict(row, benchmark="activations", size=size))
    return row


def budgets_between(least, most, count):
    """From just above what needs least to just below what needs most: outside of these there is nothing to choose."""
    return [round(least + (most - least) * (n + 0.5) / count) for n in range(count)]


def measure(installed, size, args, record, folder, nvme):
    results = Results()

    def run(name, n, keys):
        try:
            row = run_one(installed, size, keys, args, folder, record, dict(way=name, round=n + 1))
            said = f"{row['step_ms']:.1f} ms a step, activations {row['activation_bytes'] / 1e6:.1f} MB" + (f", {row['chosen']}" if row["chosen"] else "")
        except Failed as failure:
            row, said = None, f"FAILED, {failure}"
            record(dict(benchmark="activations", engine=name, size=size, round=n + 1, failed=str(failure)))
        results.add(name, n, row)
        print(f"{size} {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
        os.sync()
        return row

    uniform = {way: dict(policy=way, nvme_path=nvme) for way in UNIFORM}
    first = {way: run(way, 0, keys) for way, keys in uniform.items()}
    needs = [row["activation_bytes"] for row in first.values() if row]
    if not needs:
        return results, []
    budgets = budgets_between(min(needs), max(needs), args.budgets)
    automatic = {f"auto {budget / 1e6:.1f} MB": dict(policy="auto", memory_budget=f"{budget}B", nvme_path=nvme) for budget in budgets}
    for name, keys in automatic.items():
        run(name, 0, keys)
    every = {**uniform, **automatic}
    for n in range(1, args.rounds):
        names = list(every)
        for name in rotated(names, n):
            run(name, n, every[name])
    return results, list(zip(automatic, budgets))


def activations(installed, args, record):
    for size in args.sizes:
        folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-"))
        nvme = Path(tempfile.mkdtemp(prefix="activations-", dir=args.folder))
        try:
            results, automatic = measure(installed, size, args, record, folder, str(nvme))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(nvme, ignore_errors=True)
        names = list(UNIFORM) + [name for name, _ in automatic]
        print(f"\n{size}: medians of {args.rounds} rounds")
        print_table(["way", "step ms", "activations MB", "peak RSS MiB"],
                    [[name, number(median_of(results.of(name), "step_ms")), number(median_of(results.of(name), "activation_bytes"), 1, 1e6), number(median_of(results.of(name), "peak_rss_mb"))] for name in names])
        checks = []
        for name, budget in automatic:
            fitting = [way for way in UNIFORM if results.of(way) and max(row["activation_bytes"] for row in results.of(way)) <= budget]
            best = min(fitting, key=lambda way: statistics.median(row["step_ms"] for row in results.of(way)), default=None)
            label = f"{size}, {budget / 1e6:.1f} MB: step, chosen / best uniform that fits ({best or 'none'})"
            checks.append(check(label, results.pairs(lambda mine, other: mine["step_ms"] / other["step_ms"], name, best) if best else [], SLOWEST, within_spread=True))
            checks.append(check(f"{size}, {budget / 1e6:.1f} MB: bytes / budget", [row["activation_bytes"] / budget for row in results.of(name)], 1.0))
        for row in print_checks(checks):
            record(dict(benchmark="activations", size=size, **row))
