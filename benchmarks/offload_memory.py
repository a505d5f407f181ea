"""`benchmarks/run offload --parts memory`: the peak memory of ranks with states, gradients and parameters in files beside `trireme estimate`, and the smallest limit under which a run trains. Standard library only."""
import array
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tables import check, number, print_checks, print_table

TIMEOUT_S = 600
STEPS = 3
MODEL = {"type": "gpt", "layers": 12, "hidden": 512, "heads": 8, "sequence_length": 64, "vocab_size": 512}  # 38 million parameters, and few activations
TINY = ["model.layers=1", "model.hidden=64"]
FILES = dict(device="nvme", pipeline_read=True, pipeline_write=True, fast_init=True)
PLACES = {"memory": [1, 2, 3], "states": [1, 2, 3], "states, gradients, parameters": [3]}  # and the ZeRO stages at which that is
ALLOWED = 0.10
MARGIN = 0.10  # of the limit over the estimate
PRECISION = 0.02  # of the smallest limit
LIMITED = ("states, gradients, parameters", 3, 2)


class Limit:
    """A control group that holds what is started in it to so many bytes."""

    def __init__(self):
        self.folder = None
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            folder = Path(root) / f"trireme_benchmark_{os.getpid()}"
            try:
                if not (Path(root) / "cgroup.procs").exists():
                    continue
                folder.mkdir()
                (folder / limit).write_text(str(1 << 40))
            except OSError:
                if folder.exists():
                    folder.rmdir()
                continue
            self.folder, self.limit = folder, folder / limit
            return

    def set(self, size):
        self.limit.write_text(str(size // 4096 * 4096))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        if self.folder:
            self.folder.rmdir()


def write_run(folder):
    random.seed(1)
    (folder / "tokens.bin").write_bytes(array.array("H", [random.randrange(MODEL["vocab_size"]) for _ in range(20_000)]).tobytes())
    run = {"model": MODEL, "data": {"type": "tokens", "train": ["tokens.bin"]}, "training": {"steps": STEPS, "checkpoint_every": 0},
           "engine": {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}}
    (folder / "run.json").write_text(json.dumps(run))


def sets(folder, place, stage, bf16):
    values = [f"engine.zero_optimization.stage={stage}"]
    if bf16:
        values.append("engine.bf16.enabled=true")
    files = dict(FILES, nvme_path=str(folder / "files"))
    if place != "memory":
        values.append("engine.zero_optimization.offload_optimizer=" + json.dumps(files))
    if "parameters" in place:
        values.append("engine.zero_optimization.offload_param=" + json.dumps(dict(device="nvme", nvme_path=files["nvme_path"], max_in_cpu=0)))
    return values


def words(values):
    return [word for value in values for word in ("--set", value)]


def run(command, limit=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(os.environ, OMP_NUM_THREADS="1"), preexec_fn=limit.enter if limit else None)


def measured(trireme, folder, ranks, values):
    """The estimate of a run and its measured peak, bytes of the largest rank, both without what libtorch takes by itself."""
    done = run([str(trireme), "estimate", str(folder / "run.json"), "-n", str(ranks), "--measure", str(STEPS), "--json", *words(values)])
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-500:] or done.stdout[-500:])
    said = json.loads(done.stdout)
    stage = said["by_stage"][0]
    return dict(estimated=stage["peak_bytes"] - stage["memory"]["baseline"]["bytes"], peak=said["measured"]["peak_rss_bytes"], categories={name: item["bytes"] for name, item in stage["memory"].items()},
                start=stage["start_bytes"], of_all=said["peak_bytes_of_all"], step_ms=said["measured"]["step_ms"])


def trains(trireme, folder, ranks, values, limit, size):
    limit.set(size)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    return run([str(trireme), "train", str(folder / "run.json"), "-n", str(ranks), "--out", str(out), "--no-memory-check", *words(values)], limit).returncode == 0


def peaks(trireme, folder, bf16, record):
    """A row for each case; the ones that were meant to be compared with a limit come back by case."""
    found, lines, off, idle = {}, [], [], {}
    for place, stages in PLACES.items():
        for stage in stages:
            for ranks in (1, 2):
                values = sets(folder, place, stage, bf16)
                if (place, ranks) not in idle:
                    tiny = measured(trireme, folder, ranks, values + TINY)
                    idle[(place, ranks)] = tiny["peak"] - tiny["estimated"]
                case = measured(trireme, folder, ranks, values)
                base = idle[(place, ranks)]
                case["above"] = case["peak"] - base
                case["deviation"] = case["estimated"] / case["above"] - 1
                found[(place, stage, ranks)] = case
                off += [1 + abs(case["deviation"])] if place != "memory" else []
                record(dict(benchmark="offload", part="memory", in_files=place, zero_stage=stage, ranks=ranks, bf16=bf16, base=base, **case))
                print(f"{place}, ZeRO {stage}, {ranks}: estimated {case['estimated'] / 1e6:.0f} MB, measured {case['above'] / 1e6:.0f} MB above {base / 1e6:.0f} MB", file=sys.stderr, flush=True)
                lines.append([f"{place}, ZeRO {stage}, {ranks} rank{'s' if ranks > 1 else ''}", number(case["estimated"], 1, 1e6), number(case["above"], 1, 1e6), f"{100 * case['deviation']:+.1f} %",
                              number(base, 1, 1e6), number(case["step_ms"], 0)])
    print_table(["in files" if not bf16 else "in files, bf16", "estimated MB", "measured MB", "estimate is off by", "idle rank MB", "step ms"], lines)
    return found, off


def smallest_limit(trireme, folder, case, record):
    limit = Limit()
    if limit.folder is None:
        print("SKIPPED the smallest limit: this user may not make control groups")
        return None
    place, stage, ranks = LIMITED
    values = sets(folder, place, stage, False)
    said = case["of_all"]
    try:
        if not trains(trireme, folder, ranks, values, limit, int(said * (1 + MARGIN))):
            raise RuntimeError(f"{LIMITED} does not train within its estimate and {MARGIN:.0%}")
        works, fails = said * (1 + MARGIN), 0.2 * said
        while works - fails > PRECISION * said:
            middle = (works + fails) / 2
            if trains(trireme, folder, ranks, values, limit, int(middle)):
                works = middle
            else:
                fails = middle
    finally:
        limit.remove()
    record(dict(benchmark="offload", part="memory", limited=LIMITED, estimated_of_all=said, smallest_limit=works, largest_refused=fails))
    print(f"{place}, ZeRO {stage}, {ranks} ranks in one control group: trains with {works / 1e6:.0f} MB and not with {fails / 1e6:.0f} MB; all of it, with libtorch for each, is estimated at {said / 1e6:.0f} MB\n")
    return works / said


def memory(installed, args, record):
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-", dir=args.folder))
    trireme = installed.trireme.with_name("trireme")
    checks = []
    try:
        write_run(folder)
        print("\n## Peak memory of the largest rank, beyond an idle one, beside trireme estimate\n")
        for bf16 in (False, True):
            found, off = peaks(trireme, folder, bf16, record)
            checks.append(check(f"furthest estimate with files{', bf16' if bf16 else ''}", [max(off)], 1 + ALLOWED))
            if not bf16:
                ratio = smallest_limit(trireme, folder, found[LIMITED], record)
        if ratio:
            checks.append(check("smallest limit / estimate", [ratio], 1 + MARGIN))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in print_checks(checks):
        record(dict(row, benchmark="offload", part="memory"))
