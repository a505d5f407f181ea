"""`benchmarks/run optim`: one Adam step in fp32 and in mixed precision against torch's, DeepSpeed's and the memory's limit. Standard library only."""
import json
import os
import statistics
import sys
from pathlib import Path

from engines import TIMEOUT_S, has_row, row_of
from processes import Failed, run_together
from tables import Results, check, median_of, number, print_checks, print_table
from turns import rotated

FP32_BYTES = 28  # parameter, gradient and both moments are read, all but the gradient written
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}  # torch's allocator asks for huge pages, as `trireme bench optim` does

# row: (kind, argument of python_adam.py, environment, bytes of memory traffic a parameter)
PEERS = {
    "torch fused": ("python", "fused", {}, FP32_BYTES),
    "torch fused, huge pages": ("python", "fused", HUGE_PAGES, FP32_BYTES),
    "torch foreach": ("python", "foreach", {}, FP32_BYTES),
    "DeepSpeedCPUAdam": ("deepspeed", "deepspeed", {}, FP32_BYTES),
    "DeepSpeedCPUAdam, huge pages": ("deepspeed", "deepspeed", HUGE_PAGES, FP32_BYTES),
    "torch eager mixed": ("python", "mixed", {}, 52),
    "torch eager mixed, huge pages": ("python", "mixed", HUGE_PAGES, 52),
    "DeepSpeedCPUAdam bf16": ("deepspeed", "deepspeed-bf16", {}, 22),
}
# row: its name in `trireme bench optim`
OURS = {"trireme": "adam", "trireme mixed": "adam_bf16", "trireme mixed, bf16 states": "adam_bf16_states16", "trireme mixed, 8-bit states": "adam_bf16_states8"}
ROWS = ["limit", "trireme", *(name for name in PEERS if PEERS[name][3] == FP32_BYTES), *list(OURS)[1:],
        *(name for name in PEERS if PEERS[name][3] != FP32_BYTES)]
MIXED = [name for name in PEERS if "mixed" in name]
TARGET_OF_LIMIT = 0.9
TARGET_OF_MIXED = 0.5


def run_trireme(installed, params, threads, repeats, environment):
    command = [str(installed.trireme), "bench", "optim", "--params", str(params), "--threads", str(threads), "--repeats", str(repeats), "--impl", ",".join(OURS.values()), "--json"]
    done = run_together(command, [environment], TIMEOUT_S, has_row)
    rows = {row["impl"]: row for row in map(json.loads, done.outputs[0].splitlines())}
    return {"limit": rows["limit"], **{name: rows[impl] for name, impl in OURS.items()}}, done


def run_peer(installed, name, params, threads, repeats, environment):
    kind, argument, more, per_parameter = PEERS[name]
    python = installed.deepspeed if kind == "deepspeed" else installed.python
    path = f"{Path(python).parent}:{os.environ.get('PATH', '')}"  # DeepSpeed builds its Adam with the ninja beside its Python
    command = [python, str(Path(__file__).with_name("python_adam.py")), argument, str(params), str(threads), str(repeats)]
    done = run_together(command, [dict(environment, **more, PATH=path)], TIMEOUT_S, has_row)
    return {name: dict(row_of(done.outputs[0]), bytes=per_parameter)}, done


def measure(installed, names, params, threads, args, record):
    environment = {"OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    results = Results()
    for n in range(args.rounds):
        for name in rotated(names, n):
            try:
                if name == "trireme":
                    rows, done = run_trireme(installed, params, threads, args.repeats, environment)
                else:
                    rows, done = run_peer(installed, name, params, threads, args.repeats, environment)
                for impl, row in rows.items():
                    row = dict(benchmark="optim", impl=impl, params=params, threads=threads, round=n + 1, ms=row["ms"], ms_min=row["ms_min"],
                               bytes=row["bytes"], gb_per_s=row["bytes"] * params / row["ms"] / 1e6, of_limit=row.get("of_limit"),
                               other_cpu_pct=round(done.other_cpu_pct, 1))
                    results.add(impl, n, row)
                    record(row)
                said = f"{rows[name]['ms']:.1f} ms"
            except Failed as failure:
                results.add(name, n, None)
                record(dict(benchmark="optim", impl=name, params=params, threads=threads, round=n + 1, failed=str(failure)))
                said = f"FAILED, {failure}"
            print(f"{params / 1e6:g} M x {threads} threads {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    return results


def of_limit(results, name):
    """Trireme's is measured step by step beside the limit; a peer's is the round's limit over its own time."""
    if name in OURS:
        return results.pairs(lambda row: row["of_limit"], name)
    return results.pairs(lambda limit, row: limit["ms"] * row["bytes"] / limit["bytes"] / row["ms"], "limit", name)


def print_results(results, params, threads):
    lines = []
    for name in ROWS:
        rows = results.of(name)
        if not rows:
            if name in results.rounds:
                lines.append([name, "failed"] + [""] * 6)
            continue
        shares = of_limit(results, name)
        lines.append([name, number(rows[0]["bytes"]), number(median_of(rows, "ms"), 2), f"{min(r['ms'] for r in rows):.2f}..{max(r['ms'] for r in rows):.2f}",
                      number(min(r["ms_min"] for r in rows), 2), number(median_of(rows, "gb_per_s")),
                      number(100 * statistics.median(shares) if shares else None), number(median_of(rows, "other_cpu_pct"), 0)])
    print(f"\n## Adam, {params / 1e6:g} M parameters, {threads} thread{'s' if threads > 1 else ''}\n")
    print_table(["", "bytes", "ms", "over rounds", "best step", "GB/s", "% of the limit", "other CPU %"], lines)


def compare(results, ours, other, target):
    return check(f"{ours} / {other}", results.pairs(lambda a, b: a["ms"] / b["ms"], ours, other), target)


def optim(installed, args, record):
    wanted = ["trireme", *PEERS]
    kinds = dict(trireme="trireme", **{name: kind for name, (kind, *_) in PEERS.items()})
    for name in wanted:
        if kinds[name] in installed.missing:
            print(f"SKIPPED {name}: {installed.missing[kinds[name]]}")
    names = [name for name in wanted if kinds[name] not in installed.missing]
    if "trireme" not in names:
        record(dict(benchmark="optim", impl="trireme", params="", round=0, failed=installed.missing["trireme"]))
        return
    for params in args.params:
        for threads in args.threads:
            results = measure(installed, names, params, threads, args, record)
            print_results(results, params, threads)
            checks = [compare(results, "trireme", name, 1.0) for name in names if PEERS.get(name, ("",) * 4)[3] == FP32_BYTES]
            checks += [compare(results, "trireme mixed", name, TARGET_OF_MIXED) for name in names if name in MIXED]
            for name in list(OURS)[2:]:
                share = results.pairs(lambda a, b: a["bytes"] / b["bytes"], name, "trireme mixed")
                checks.append(compare(results, name, "trireme mixed", round(share[0], 3) if share else None))
            checks.append(check("trireme, what is missing to the limit", [1 - share for share in of_limit(results, "trireme")], round(1 - TARGET_OF_LIMIT, 3)))
            for row in print_checks(checks):
                record(dict(row, benchmark="optim", params=params, threads=threads))
    print(f"limit: the same traffic with less arithmetic, read 4 arrays and write 3, {FP32_BYTES} bytes a parameter, timed in turns with trireme's steps.")
    print("bytes: memory traffic a parameter that the step needs; % of the limit: the time that these bytes would take there.")
    print("Arrays of a few million parameters stay in the caches: there the limit is none.")
