#!/usr/bin/env python3
"""Attention over several ranks, forward and backward in fp32 with one thread a rank: Trireme's ring and Ulysses, over shared memory and gloo, beside PyTorch's ring attention (what
context_parallel runs; python_context.py says why not the context manager itself), in turns, as ratios. Standard library only.

  benchmarks/context.py --rounds 3 --ranks 2,4 --lengths 512,2048,8192"""
import argparse
import json
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True

from engines import ROOT, Installed, has_row  # noqa: E402
from processes import Failed, rank_environments, run_together  # noqa: E402
from tables import Results, check, median_of, number, print_checks, print_table  # noqa: E402
from turns import rotated  # noqa: E402

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600
# name: (program, kind, what else)
ENGINES = {
    "ring shm": ("trireme", "ring", "auto"), "ring gloo": ("trireme", "ring", "gloo"), "ulysses shm": ("trireme", "ulysses", "auto"), "ulysses gloo": ("trireme", "ulysses", "gloo"),
    "torch allgather": ("python", "ring", "allgather"), "torch alltoall": ("python", "ring", "alltoall"),
}
PEERS = [name for name in ENGINES if name.startswith("torch")]
BATCH, HEADS, HEAD_SIZE = 2, 8, 64


def run(program, python, name, ranks, causal, args):
    kind, form, how = ENGINES[name]
    spec = dict(kind=form, causal=causal, rotate=how, repeats=args.repeats, sizes=[dict(batch=BATCH, heads=HEADS, length=length, head_size=HEAD_SIZE) for length in args.lengths])
    environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if kind == "trireme":
        environment["TRIREME_BACKEND"] = how
    command = [str(program)] if kind == "trireme" else [python, str(HERE / "python_context.py")]
    environments = [dict(environment, **rank) for rank in rank_environments(ranks)]
    done = run_together([*command, json.dumps(spec)], environments, TIMEOUT_S, lambda _: True)
    rows = [json.loads(line) for line in done.outputs[0].splitlines() if line.startswith("{")]
    if len(rows) != len(args.lengths):
        raise Failed(f"printed {len(rows)} rows: {done.outputs[0].strip()[-300:]}")
    return rows


def measure(program, python, ranks, causal, args, record):
    results = {length: Results() for length in args.lengths}
    names = list(ENGINES)
    for n in range(args.rounds):
        for name in rotated(names, n):
            try:
                rows = run(program, python, name, ranks, causal, args)
                said = "  ".join(f"{row['ms']:.1f}" for row in rows) + " ms"
                for row in rows:
                    row = dict(row, benchmark="context", engine=name, ranks=ranks, causal=causal, round=n + 1)
                    results[row["length"]].add(name, n, row)
                    record(row)
            except Failed as failure:
                for length in args.lengths:
                    results[length].add(name, n, None)
                record(dict(benchmark="context", engine=name, ranks=ranks, causal=causal, round=n + 1, failed=str(failure)))
                said = f"FAILED, {failure}"
            print(f"{ranks} ranks {'causal' if causal else 'full'} {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    return results


def report(results, ranks, causal, record):
    print(f"\n## {ranks} ranks, {'causal' if causal else 'every token sees all'}; forward and backward, ms (CPU time of all ranks; MB sent by a rank)\n")
    lines, checks = [], []
    for name in ENGINES:
        rows = {length: result.of(name) for length, result in results.items()}
        lines.append([name] + [f"{number(median_of(r, 'ms'), 1)} ({number(median_of(r, 'cpu_ms'), 1)}" + (f"; {r[0]['sent_bytes'] / 1e6:.1f})" if r and "sent_bytes" in r[0] else ")") for r in rows.values()])
    print_table(["", *(f"T = {length}" for length in results)], lines)
    for length, result in results.items():
        sums = [row["checksum"] for name in ENGINES for row in result.of(name)[:1]]
        if sums and max(sums) - min(sums) > 1e-4 * max(sums):
            print(f"WARNING: results at T = {length} differ: checksums {sums}")
        peers = [name for name in PEERS if result.of(name)]
        if not peers:
            continue
        best = min(peers, key=lambda name: median_of(result.of(name), "ms"))
        for name in ENGINES:
            if name not in PEERS:
                checks.append(check(f"T = {length}, {ranks} ranks{' causal' if causal else ''}: {name} / {best}", result.pairs(lambda a, b: a["ms"] / b["ms"], name, best), 1.0))
                checks.append(check("  the same, CPU time", result.pairs(lambda a, b: a["cpu_ms"] / b["cpu_ms"], name, best), None))
    for row in print_checks(checks):
        record(dict(row, benchmark="context", ranks=ranks, causal=causal))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each run (5)")
    parser.add_argument("--ranks", type=whole, default=[2, 4])
    parser.add_argument("--lengths", type=whole, default=[512, 2048, 8192], help=f"tokens of the whole sequence; {BATCH} samples, {HEADS} heads of {HEAD_SIZE}")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run and every ratio, one JSON object a line")
    args = parser.parse_args()
    installed = Installed(args.build.resolve())
    program = args.build.resolve() / "bin" / "benchmark_context_attention"
    if not program.exists() or not installed.python:
        print(f"{program} is needed (cmake --build --preset release --target benchmark_context_attention), and a Python with torch in .venv.", file=sys.stderr)
        return 2
    print(f"{len(os.sched_getaffinity(0))} usable cores, load {os.getloadavg()[0]:.1f}, {'; '.join(installed.versions)}")

    def record(row):
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    for ranks in args.ranks:
        for mask in args.masks.split(","):
            report(measure(program, installed.python, ranks, mask == "causal", args, record), ranks, mask == "causal", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
