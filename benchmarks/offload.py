"""`benchmarks/run offload`: transfers of files beside fio and DeepSpeed's AIO handle; steps with states in files beside steps without, and DeepSpeed's; peak memory beside the estimate. Standard library only."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import OFFLOAD_ENGINES, has_row, row_of
from offload_memory import memory
from processes import Failed, run_together
from rounds import run_in_turns
from tables import Results, check, median_of, number, print_checks, print_table
from turns import rotated
from train import print_engines, step_ratio
from workloads import AIO, make_spec

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 900
TARGET_OF_FIO = 0.95
TARGET_OF_STEP = 1.1  # of the longer of computation and disk
PIECE = 64 << 20  # of benchmark_aio
HUGE_PAGES = 64  # of 2 MiB: blocks of up to 4 MiB, 32 at a time
# name: (kind, threads); 0: the one thread of an io_uring; small: the same without huge pages, which fio has only where they are reserved (huge)
TRANSFERS = {"trireme": ("trireme", 0), "trireme, 4 threads": ("trireme", 4), "trireme, small pages": ("trireme", "small"), "fio io_uring": ("fio", 0), "fio io_uring, huge pages": ("fio", "huge"), "fio libaio": ("fio", 0), "DeepSpeed": ("deepspeed", 1), "DeepSpeed, 4 threads": ("deepspeed", 4)}
OURS, THEIRS, THEIRS_IN_HUGE_PAGES = "trireme", "fio io_uring", "fio io_uring, huge pages"  # the kernel merges what Trireme asks for; fio takes only reserved ones


def run_fio(name, file, size, block, depth):
    """fio with the same file, blocks and depth, its buffers known to the kernel too and filled once: one row of both directions."""
    row = {}
    extra = ["--mem=mmaphuge"] if TRANSFERS[name][1] == "huge" else []
    for direction in ("write", "read"):
        command = ["fio", "--name=x", f"--filename={file}", f"--rw={direction}", f"--bs={block}", f"--size={size}", f"--ioengine={name.split()[1].rstrip(',')}", f"--iodepth={depth}", "--direct=1",
                   "--fallocate=none", "--scramble_buffers=0", "--output-format=json", *(["--fixedbufs=1"] if name.startswith(THEIRS) else []), *extra]
        done = run_together(command, [{}], TIMEOUT_S, lambda output: "{" in output)
        output = done.outputs[0]
        job = json.loads(output[output.index("{"):])["jobs"][0]
        if job["error"] or job[direction]["io_bytes"] != size:
            raise Failed(f"fio moved {job[direction]['io_bytes']} bytes, error {job['error']}")
        row[f"{direction}_gb_per_s"] = job[direction]["bw_bytes"] / 1e9
    return row, done


def run_transfers(installed, name, file, size, block, depth):
    kind, threads = TRANSFERS[name]
    if kind == "fio":
        return run_fio(name, file, size, block, depth)
    if kind == "trireme":
        command = [str(program_of(installed)), str(file), str(size), str(block), str(depth), *([str(threads)] if threads else [])]
        environment = {}
    else:
        command = [installed.deepspeed, str(HERE / "python_aio.py"), str(file), str(size), str(block), str(depth), str(threads)]
        # DeepSpeed compiles its AIO with the ninja beside its Python.
        environment = {"DS_ACCELERATOR": "cpu", "TORCH_CPP_LOG_LEVEL": "ERROR", "PATH": f"{Path(installed.deepspeed).parent}:{os.environ.get('PATH', '')}"}
    done = run_together(command, [environment], TIMEOUT_S, has_row)
    return row_of(done.outputs[0]), done


def program_of(installed):
    return installed.trireme.with_name("benchmark_aio")


def free_huge_pages():
    return next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("HugePages_Free"))


def missing_of(installed, name):
    kind = TRANSFERS[name][0]
    if kind == "fio":
        if not shutil.which("fio"):
            return "fio is not installed"
        return None if TRANSFERS[name][1] != "huge" or free_huge_pages() >= HUGE_PAGES else f"fewer than {HUGE_PAGES} huge pages are reserved: sysctl vm.nr_hugepages={HUGE_PAGES}"
    if kind == "trireme":
        return None if program_of(installed).exists() else f"{program_of(installed)} is not built: cmake --build --preset release --target benchmark_aio"
    return installed.missing.get("deepspeed")


def measure(installed, names, file, size, block, depth, args, record):
    results = Results()
    for n in range(args.rounds):
        for name in rotated(names, n):
            try:
                row, done = run_transfers(installed, name, file, size, block, depth)
                row = dict(row, benchmark="offload", part="transfers", impl=name, block_size=block, queue_depth=depth, bytes=size, round=n + 1, other_cpu_pct=round(done.other_cpu_pct, 1))
                record(row)
                said = f"write {row['write_gb_per_s']:.2f}, read {row['read_gb_per_s']:.2f} GB/s"
            except Failed as failure:
                row, said = None, f"FAILED, {failure}"
                record(dict(benchmark="offload", impl=name, round=n + 1, failed=str(failure)))
            results.add(name, n, row)
            print(f"depth {depth} {n + 1}/{args.rounds} {name}: {said}", file=sys.stderr, flush=True)
    return results


def print_transfers(results, names):
    def ranged(rows, key):
        values = [row[key] for row in rows]
        return f"{number(median_of(rows, key), 2)} ({min(values):.2f}-{max(values):.2f})"

    lines = []
    for name in names:
        rows = results.of(name)
        lines.append([name] + ([ranged(rows, "write_gb_per_s"), ranged(rows, "read_gb_per_s"), number(median_of(rows, "write_cpu_s_per_gb"), 3), number(median_of(rows, "read_cpu_s_per_gb"), 3)]
                               if rows else ["failed", "", "", ""]))
    print_table(["", "write GB/s", "read GB/s", "CPU s a GB written", "read"], lines)


def checks_of(results, names):
    checks = []
    for peer in names:
        if TRANSFERS[peer][0] == "trireme":
            continue
        limit = TARGET_OF_FIO if peer in (THEIRS, THEIRS_IN_HUGE_PAGES) else 1.0 if TRANSFERS[peer][0] == "deepspeed" else None
        for direction in ("write", "read"):
            key = f"{direction}_gb_per_s"
            checks.append(check(f"{OURS} / {peer}, {direction}", results.pairs(lambda a, b: a[key] / b[key], OURS, peer), limit, at_least=True))
    return checks


def transfers(installed, args, record):
    names = []
    for name in TRANSFERS:
        why = missing_of(installed, name)
        if why:
            print(f"SKIPPED {name}: {why}")
            record(dict(benchmark="offload", engine=name, skipped=why))
        else:
            names.append(name)
    if OURS not in names:
        record(dict(benchmark="offload", impl=OURS, round=0, failed=missing_of(installed, OURS)))
        return
    size = max(1, args.bytes // PIECE) * PIECE
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-", dir=args.folder))
    file = folder / "transfers"
    try:
        subprocess.run([str(program_of(installed)), str(file), "0", str(size)], check=True)
        if "DeepSpeed" in names:  # it compiles its AIO when it first runs, which takes minutes: not between two that are compared
            try:
                run_transfers(installed, "DeepSpeed", file, PIECE, args.block_size, 8)
            except Failed:
                pass  # the measured runs will say it
        for depth in args.queue_depths:
            results = measure(installed, names, file, size, args.block_size, depth, args, record)
            print(f"\n## Transfers of {size / 1e9:.2f} GB, blocks of {args.block_size >> 10} KiB, {depth} at a time, in {args.folder}\n")
            print_transfers(results, names)
            for row in print_checks(checks_of(results, names)):
                record(dict(row, benchmark="offload", part="transfers", queue_depth=depth))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("All write over one file that is there, then read it, past the page cache. DeepSpeed's threads have a queue each. fio has as many buffers as requests, Trireme three of 64 MiB.")


def add_disk_time(installed, file, size, row):
    """Adds what the disk needs for the bytes of a step of this row, measured right after it: reads and writes mixed as in the step, by the same engine, queue and disk."""
    read, written = row.get("offload_read_bytes"), row.get("offload_write_bytes")
    if not read and not written:
        return
    command = [str(program_of(installed)), str(file), str(size), str(AIO["block_size"]), str(AIO["queue_depth"]), "mix", str(read / (read + written))]
    done = run_together(command, [{}], TIMEOUT_S, has_row)
    row["mixed_gb_per_s"] = row_of(done.outputs[0])["gb_per_s"]
    row["disk_ms"] = (read + written) / row["mixed_gb_per_s"] / 1e6


def print_disk(results, names):
    rows = {name: results.of(name) for name in names if any("disk_ms" in row for row in results.of(name))}
    if rows:
        print_table(["engine", "read MB a step", "written MB a step", "disk, mixed as the step, GB/s", "disk ms a step"],
                    [[name, number(median_of(some, "offload_read_bytes"), 0, 1e6), number(median_of(some, "offload_write_bytes"), 0, 1e6), number(median_of(some, "mixed_gb_per_s"), 2), number(median_of(some, "disk_ms"), 0)]
                     for name, some in rows.items()])


def step_checks(results, names):
    """Steps with files beside the same without them (the computation), beside the disk's time, beside the longer of the two, and beside DeepSpeed's."""
    checks = []
    for ours in (name for name in names if name.startswith("trireme") and "nvme" in name):
        base, peer = ours.partition("-nvme")[0], ours.replace("trireme", "deepspeed").replace("z1", "z3").removesuffix("-backward")
        measured = any("disk_ms" in row for row in results.of(ours))
        checks.append(check(f"{ours} / {base}", step_ratio(results, ours, base), None))
        checks.append(check(f"{ours} / disk", results.pairs(lambda row: row["step_ms"] / row["disk_ms"], ours) if measured else [], None))
        longer = results.pairs(lambda row, compute: row["step_ms"] / max(compute["step_ms"], row["disk_ms"]), ours, base) if measured else []
        checks.append(check(f"{ours} / the longer of {base} and disk", longer, TARGET_OF_STEP))
        checks.append(check(f"{ours} / {peer}", step_ratio(results, ours, peer), 1.0))
    return checks


def steps(installed, args, record):
    names = installed.usable(args.engines)
    tempfile.tempdir = str(args.folder)  # where run_in_turns() makes the folder with the files
    why = missing_of(installed, OURS)
    if why:
        print(f"SKIPPED the disk's time: {why}")
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-"))
    file, bytes_moved = folder / "transfers", max(1, args.bytes // PIECE) * PIECE
    try:
        if not why:
            subprocess.run([str(program_of(installed)), str(file), "0", str(bytes_moved)], check=True)
        for size in args.sizes:
            results = run_in_turns(installed, names, args.rounds, record, dict(benchmark="offload", size=size),
                                   lambda name: make_spec(size, OFFLOAD_ENGINES[name][1], args.total_threads, args.steps),
                                   add=lambda row, name, spec: None if why else add_disk_time(installed, file, bytes_moved, row))
            print(f"\n## Steps of {size}, masters and states (params: parameters too) in {args.folder}\n")
            print_engines(results, names)
            print_disk(results, names)
            for row in print_checks([c for c in step_checks(results, names) if c[1] or set(args.engines) == set(OFFLOAD_ENGINES)]):
                record(dict(row, benchmark="offload", part="steps", size=size))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("disk: what the bytes of a step take alone, by benchmark_aio in the same folder, right after each run: reads and writes mixed as in the step, three pieces of 64 MiB at a time.")


def offload(installed, args, record):
    if "transfers" in args.parts:
        transfers(installed, args, record)
    if "steps" in args.parts:
        steps(installed, args, record)
    if "memory" in args.parts:
        memory(installed, args, record)
