#!/usr/bin/env python3
"""Training steps of a GPT whose layers are split among 2 and 4 ranks: Trireme over shared memory and gloo beside PyTorch's parallelize_module (DTensor over gloo), with and without
sequence parallelism, in turns, as ratios. The batch is the same everywhere, and so are the losses. Standard library only.

  benchmarks/tensor.py --rounds 3 --ranks 2,4 --sizes tiny,small"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

from engines import ROOT, Installed, has_row, row_of, run_trireme  # noqa: E402
from processes import Failed, rank_environments, run_together  # noqa: E402
from tables import Results, check, median_of, number, print_checks, print_table  # noqa: E402
from turns import rotated  # noqa: E402
from workloads import SIZES, make_spec, write_tokens  # noqa: E402

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1200
# name: (program, backend, sequence parallelism)
ENGINES = {"shm": ("trireme", "auto", False), "gloo": ("trireme", "gloo", False), "DTensor": ("python", "", False),
           "shm, sequence": ("trireme", "auto", True), "gloo, sequence": ("trireme", "gloo", True), "DTensor, sequence": ("python", "", True)}


def heads_for(size, ranks):
    """The size's heads, or the next number that the ranks can share: 8 of 48 features instead of 6 of 64 for small on 4 ranks."""
    shape = SIZES[size]
    return next((heads for heads in range(shape["heads"], shape["hidden"] + 1) if heads % ranks == 0 and shape["hidden"] % heads == 0), shape["heads"])


def run(installed, name, size, ranks, threads, steps):
    program, backend, sequence = ENGINES[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        spec = dict(make_spec(size, 1, threads, steps), threads=max(1, threads // ranks), tensor=ranks, sequence_parallel=sequence, heads=heads_for(size, ranks), tie=False, zero_stage=0, dtype="fp32", shard_all=False,
                    tokens=str(folder / "tokens.bin"))
        write_tokens(folder / "tokens.bin", spec)
        environment = {"OMP_NUM_THREADS": str(spec["threads"]), "TORCH_CPP_LOG_LEVEL": "ERROR", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if program == "trireme":
            _, rows = run_trireme(installed, spec, ranks, folder, dict(environment, TRIREME_BACKEND=backend))
            row = rows[0]
        else:
            command = [installed.python, str(HERE / "python_tensor.py"), json.dumps(spec)]
            row = row_of(run_together(command, [dict(environment, **rank) for rank in rank_environments(ranks)], TIMEOUT_S, has_row).outputs[0])
        return dict(benchmark="tensor", engine=name, size=size, ranks=ranks, step_ms=statistics.median(row["step_ms"][spec["warmup"]:]), loss_first=row["losses"][0],
                    loss_last=row["losses"][-1], sent_bytes=row.get("sent_bytes"))


def measure(installed, size, ranks, args, record):
    results, names = Results(), list(ENGINES)
    for n in range(args.rounds):
        for name in rotated(names, n):
            try:
                row = run(installed, name, size, ranks, args.total_threads, args.steps)
                said = f"{row['step_ms']:.1f} ms"
            except Failed as failure:
                row, said = None, f"FAILED, {failure}"
            results.add(name, n, row)
            record(dict(row, round=n + 1) if row else dict(benchmark="tensor", engine=name, size=size, ranks=ranks, round=n + 1, failed=said))
            print(f"{size}, {ranks} ranks, {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    return results


def report(results, size, ranks, record):
    print(f"\n## {size}, {ranks} ranks\n")
    lines = []
    for name in ENGINES:
        rows = results.of(name)
        lines.append([name] + ([number(median_of(rows, "step_ms"), 1), number(rows[0]["sent_bytes"], 2, 1e6) if rows[0]["sent_bytes"] else "", f"{rows[0]['loss_first']:.5f} {rows[0]['loss_last']:.5f}"]
                               if rows else ["failed", "", ""]))
    print_table(["engine", "step ms", "sent MB a rank", "loss first, last"], lines)
    checks = []
    for suffix in ("", ", sequence"):
        for backend in ("shm", "gloo"):
            checks.append(check(f"{backend}{suffix} / DTensor{suffix}", results.pairs(lambda a, b: a["step_ms"] / b["step_ms"], backend + suffix, "DTensor" + suffix), 1.0))
    for row in print_checks(checks):
        record(dict(row, benchmark="tensor", size=size, ranks=ranks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4])
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["tiny", "small"], help="some of: " + ",".join(SIZES))
    parser.add_argument("--steps", type=int, help="timed steps of each run")
    parser.add_argument("--total-threads", type=int, default=cores, metavar="N", help="threads of all ranks together (all cores)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run and every ratio, one JSON object a line")
    args = parser.parse_args()
    installed = Installed(args.build.resolve())
    for kind in ("trireme", "python"):
        if kind in installed.missing:
            print(installed.missing[kind], file=sys.stderr)
            return 2
    print(f"{cores} usable cores, load {os.getloadavg()[0]:.1f}, {'; '.join(installed.versions)}")

    def record(row):
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    for size in args.sizes:
        for ranks in args.ranks:
            report(measure(installed, size, ranks, args, record), size, ranks, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
