"""`benchmarks/run comm`: all-reduce over Trireme's backends, Open MPI, PyTorch's gloo, DeepSpeed's shared memory, and the memory's limit. Standard library only."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import has_row
from processes import Failed, rank_environments, run_together
from tables import Results, check, median_of, number, print_checks, print_table
from turns import rotated

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600
# name: what runs it
LIBRARIES = {"trireme": "trireme", "torch gloo": "python", "DeepSpeed shm": "deepspeed", "Open MPI": "mpi"}
OURS = {"memcpy": "limit", "shm": "trireme shm", "gloo": "trireme gloo"}
ROWS = [*OURS.values(), *list(LIBRARIES)[1:]]
MIB = 1 << 20


def run_trireme(installed, ranks, args):
    command = [str(installed.trireme), "bench", "comm", "--op", "all_reduce", "--ranks", str(ranks), "--bytes", ",".join(map(str, args.bytes)),
               "--repeats", str(args.repeats), "--json"]
    done = run_together(command, [{"OMP_NUM_THREADS": "1"}], TIMEOUT_S, has_row)
    return [json.loads(line) for line in done.outputs[0].splitlines()], done


def run_python(installed, name, ranks, args):
    python = installed.deepspeed if name.startswith("DeepSpeed") else installed.python
    library = "deepspeed" if name.startswith("DeepSpeed") else "gloo"
    environment = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TORCH_CPP_LOG_LEVEL": "ERROR", "PATH": f"{Path(python).parent}:{os.environ.get('PATH', '')}"}
    command = [python, str(HERE / "python_all_reduce.py"), library, str(args.repeats), *map(str, args.bytes)]
    done = run_together(command, [dict(environment, **rank) for rank in rank_environments(ranks)], TIMEOUT_S, lambda _: True)
    return [json.loads(line) for line in done.outputs[0].splitlines() if line.startswith("{")], done


def run_mpi(program, ranks, args):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), str(program), str(args.repeats), *map(str, args.bytes)]
    done = run_together(command, [{}], TIMEOUT_S, has_row)
    return [json.loads(line) for line in done.outputs[0].splitlines() if line.startswith("{")], done


def run_library(installed, name, program, ranks, args):
    kind = LIBRARIES[name]
    if kind == "trireme":
        return run_trireme(installed, ranks, args)
    return run_mpi(program, ranks, args) if kind == "mpi" else run_python(installed, name, ranks, args)


def measure(installed, names, program, ranks, args, record):
    results = {size: Results() for size in args.bytes}
    for n in range(args.rounds):
        for name in rotated(names, n):
            try:
                rows, done = run_library(installed, name, program, ranks, args)
                if not rows:
                    raise Failed(f"printed nothing: {done.outputs[0].strip()[-300:]}")
                for row in rows:
                    row_name = OURS[row["backend"]] if name == "trireme" else name
                    row = dict(benchmark="comm", library=row_name, ranks=ranks, round=n + 1, bytes=row["bytes"], us=row["us"], us_min=row["us_min"])
                    results[row["bytes"]].add(row_name, n, row)
                    record(row)
                said = "  ".join(f"{row['us']:.1f}" for row in rows if row.get("backend", "shm") == "shm") + " us"
            except Failed as failure:
                for size in args.bytes:
                    results[size].add("trireme shm" if name == "trireme" else name, n, None)
                record(dict(benchmark="comm", engine=name, ranks=ranks, round=n + 1, failed=str(failure)))
                said = f"FAILED, {failure}"
            print(f"{ranks} ranks {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    return results


def size_text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def print_results(results, ranks):
    print(f"\n## All-reduce of fp32 in place, {ranks} ranks, us\n")
    lines = []
    for name in ROWS:
        if any(name in result.rounds for result in results.values()):
            lines.append([name] + [number(median_of(result.of(name), "us"), 1) for result in results.values()])
    print_table(["", *map(size_text, results)], lines)


def ratios(results, ranks):
    def ratio(size, peer):
        return results[size].pairs(lambda a, b: a["us"] / b["us"], "trireme shm", peer)
    checks = []
    for size in results:
        large = size >= MIB
        targets = {"limit": 1.25 if large else None, "torch gloo": 0.25 if large else None, "Open MPI": 0.5 if large else 1.0 if size == 4096 else None,
                   "DeepSpeed shm": 0.5 if size == 64 * MIB else None}
        checks += [check(f"{size_text(size)}, {ranks} ranks: trireme shm / {peer}", ratio(size, peer), target) for peer, target in targets.items()]
    return [c for c in checks if c[1]]


def comm(installed, args, record):
    names, folder, program = [], Path(tempfile.mkdtemp(prefix="trireme-benchmark-")), None
    try:
        missing = dict(installed.missing)
        if shutil.which("mpicc") and shutil.which("mpirun"):
            program = folder / "mpi_all_reduce"
            subprocess.run(["mpicc", "-O2", str(HERE / "mpi_all_reduce.c"), "-o", str(program)], check=True)
        else:
            missing["mpi"] = "Open MPI is not installed: apt install openmpi-bin libopenmpi-dev"
        for name, kind in LIBRARIES.items():
            if kind in missing:
                print(f"SKIPPED {name}: {missing[kind]}")
                record(dict(benchmark="comm", engine=name, skipped=missing[kind]))
            else:
                names.append(name)
        for ranks in args.ranks:
            results = measure(installed, names, program, ranks, args, record)
            print_results(results, ranks)
            for row in print_checks(ratios(results, ranks)):
                record(dict(row, benchmark="comm", ranks=ranks))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("limit: the bytes that must move at the speed of a copy by all ranks at once, in the same run (`trireme bench comm --help`).")
