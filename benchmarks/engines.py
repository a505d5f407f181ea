"""The engines that are compared: how each is started, and what it measured as one row. Standard library only."""
import json
import os
import re
import shutil
import statistics
import subprocess
from pathlib import Path

from processes import Failed, rank_environments, run_together
from workloads import parameters, samples_per_step, write_run_file, write_tokens

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1800

# name: (kind, ranks); in the order of the tables
ENGINES = {
    "raw": ("raw", 1), "raw-fused": ("raw", 1), "trireme-1": ("trireme", 1), "plain": ("python", 1), "compile": ("python", 1), "ddp-1": ("python", 1),
    "deepspeed-1": ("deepspeed", 1), "trireme-2": ("trireme", 2), "trireme-2-gloo": ("trireme", 2), "parallel-2": ("raw", 2), "horovod-2": ("raw", 2), "ddp-2": ("python", 2), "deepspeed-2": ("deepspeed", 2),
}
# name: (kind, processes); the part after the first hyphen is the schedule, t1 the same work in one process on one thread
PIPELINE_ENGINES = {
    "plain-t1": ("python", 1), "raw-t1": ("raw", 1), "trireme-1f1b": ("trireme", 2), "trireme-interleaved": ("trireme", 2),
    "trireme-zero-bubble": ("trireme", 2), "torch-1f1b": ("python", 2), "torch-interleaved": ("python", 2), "deepspeed-1f1b": ("deepspeed", 2),
}
# name: (kind, ranks); traits_of() says what the parts of a name mean
ZERO_ENGINES = {
    "raw": ("raw", 1), "raw-fused": ("raw", 1), "plain": ("python", 1), "trireme-1": ("trireme", 1), "trireme-1-z1": ("trireme", 1),
    "trireme-1-z3": ("trireme", 1), "trireme-1-z3-all": ("trireme", 1), "deepspeed-1-z1": ("deepspeed", 1), "deepspeed-1-z3": ("deepspeed", 1),
    "plain-bf16": ("python", 1), "plain-autocast-bf16": ("python", 1), "trireme-1-bf16": ("trireme", 1),
    **{f"trireme-2-z{stage}": ("trireme", 2) for stage in range(4)}, "trireme-2-z3-all": ("trireme", 2),
    "ddp-2": ("python", 2), "fsdp-2": ("python", 2), "fsdp-2-malloc": ("python", 2),
    **{f"deepspeed-2-z{stage}": ("deepspeed", 2) for stage in range(4)},
    **{f"trireme-2-z{stage}-bf16": ("trireme", 2) for stage in range(4)}, "ddp-2-bf16": ("python", 2), "fsdp-2-bf16": ("python", 2),
    **{f"deepspeed-2-z{stage}-bf16": ("deepspeed", 2) for stage in range(4)},
}
# name: (kind, ranks); nvme: masters and optimizer states in files between uses, read and written beside the step of another bucket; backward: stepped during backward; params: the parameters too
OFFLOAD_ENGINES = {
    "trireme-1-z1": ("trireme", 1), "trireme-1-z1-nvme": ("trireme", 1), "trireme-1-z1-nvme-backward": ("trireme", 1), "trireme-1-z3": ("trireme", 1), "trireme-1-z3-nvme": ("trireme", 1), "trireme-1-z3-nvme-params": ("trireme", 1),
    "deepspeed-1-z3": ("deepspeed", 1), "deepspeed-1-z3-nvme": ("deepspeed", 1), "deepspeed-1-z3-nvme-params": ("deepspeed", 1),  # it has files at stage 3 only
}
KINDS = {**ENGINES, **PIPELINE_ENGINES, **ZERO_ENGINES, **OFFLOAD_ENGINES}


def traits_of(name):
    """What a name says besides kind and ranks: z0 to z3 is ZeRO's stage (FSDP2 shards what stage 3 does), bf16 the type, autocast how a plain
    loop uses it, all that stage 3 shards small parameters too, which it otherwise leaves whole."""
    engine, *parts = name.split("-")
    stage = next((int(part[1]) for part in parts if part in ("z0", "z1", "z2", "z3")), 3 if engine == "fsdp" else 0)
    return dict(engine=engine, zero_stage=stage, dtype="bf16" if "bf16" in parts else "fp32", autocast="autocast" in parts,
                shard_all="all" in parts, step_in_backward="backward" in parts, nvme=["optimizer"] * ("nvme" in parts) + ["param"] * ("params" in parts))

PROBE = """
import importlib.metadata as metadata, importlib.util as util
print(*(metadata.version(n) if util.find_spec(n) else "-" for n in ("torch", "deepspeed")))
"""


class Installed:
    """What there is to measure. `python` and `deepspeed` are interpreters or None, `missing` says for each kind why it is left out."""

    def __init__(self, build):
        self.trireme, self.raw = build / "bin" / "trireme", build / "bin" / "benchmark_raw_loop"
        self.python = self.deepspeed = None
        self.missing, self.versions = {}, []
        for candidate in (ROOT / ".venv" / "bin" / "python", os.environ.get("TRIREME_BENCH_PYTHON")):
            if not candidate or not shutil.which(candidate):
                continue
            probe = subprocess.run([str(candidate), "-c", PROBE], capture_output=True, text=True)
            torch, deepspeed = (probe.stdout.split() + ["-", "-"])[:2]
            if torch != "-" and not self.python:
                self.python = str(candidate)
                self.versions.append(f"torch {torch}")
            if torch != "-" and deepspeed != "-" and not self.deepspeed:
                self.deepspeed = str(candidate)
                self.versions.append(f"DeepSpeed {deepspeed} with torch {torch}")
        for kind, program, target in (("trireme", self.trireme, "all"), ("raw", self.raw, "benchmark_raw_loop")):
            if not program.exists():
                self.missing[kind] = f"{program} is not built: cmake --build --preset release --target {target}"
        if not self.python:
            self.missing["python"] = "no Python with torch in .venv or TRIREME_BENCH_PYTHON: ./quickstart installs it"
        if not self.deepspeed:
            self.missing["deepspeed"] = "DeepSpeed is not installed in .venv or in the Python named by TRIREME_BENCH_PYTHON"

    def usable(self, names):
        return [name for name in names if KINDS[name][0] not in self.missing]

    def skipped(self, names):
        return {name: self.missing[KINDS[name][0]] for name in names if KINDS[name][0] in self.missing}


def has_row(output):
    return any(line.startswith("{") for line in output.splitlines())


def row_of(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def run_trireme(installed, spec, processes, folder, environment):
    write_run_file(folder / "run.json", spec)
    out = folder / "out"
    try:
        command = [str(installed.trireme), "train", str(folder / "run.json"), "-n", str(processes), "--out", str(out)]
        done = run_together(command, [environment], TIMEOUT_S, lambda _: True)
        metrics = out / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        logs = [log.read_text() for log in sorted((out / "logs").rglob("*")) if log.is_file()] if (out / "logs").exists() else []
        if not done.clean or len(lines) != spec["steps"]:
            tail = [log.strip().splitlines()[-1:] for log in logs]
            raise Failed(f"wrote {len(lines)} of {spec['steps']} steps: {(done.errors[0] or done.outputs[0]).strip()[-300:] or tail}")
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return done, [dict(step_ms=[l["step_ms"] for l in lines], ended=[l["wall_time"] for l in lines], losses=[l["loss"] for l in lines],
                       peak_rss_bytes=max(l["peak_rss_bytes"] for l in lines), sent_bytes=lines[-1]["comm_bytes"],
                       activation_bytes=max((l.get("activation_bytes", 0) for l in lines[spec["warmup"]:]), default=0),
                       chosen=next(iter(re.findall(r'"choices": \[(.*)\]', "\n".join(logs))), None),
                       **{key: statistics.mean(l.get(key, 0) for l in lines[spec["warmup"]:]) for key in ("offload_read_bytes", "offload_write_bytes")})]


def run_engine(installed, name, spec, folder):
    """One run of one engine in `folder`: a row with everything the tables show. Raises Failed."""
    kind, processes = KINDS[name]
    spec = dict(spec, tokens=str(folder / "tokens.bin"), nvme_path=str(folder / "nvme"), **traits_of(name))
    if "stages" in spec and processes > 1:
        spec["schedule"] = name.partition("-")[2]
    write_tokens(folder / "tokens.bin", spec)
    environment = {"OMP_NUM_THREADS": str(spec["threads"]), "DS_ACCELERATOR": "cpu", "TORCH_CPP_LOG_LEVEL": "ERROR", "NO_COLOR": "1",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    if name.endswith("-gloo"):
        environment["TRIREME_BACKEND"] = "gloo"
    if name.endswith("-malloc"):
        environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)  # blocks of 1 MiB and more go back to the system when they are freed
    if kind == "trireme":
        done, rows = run_trireme(installed, spec, processes, folder, environment)
    elif kind == "raw":
        spec["optimizer"] = "fused" if name in ("raw-fused", "parallel-2", "horovod-2") else "adamw"
        ranks = rank_environments(processes) if processes > 1 else [{}]
        done = run_together([str(installed.raw), json.dumps(spec)], [dict(environment, **rank) for rank in ranks], TIMEOUT_S, has_row)
        rows = [row_of(output) for output in done.outputs]
    else:
        python = installed.deepspeed if kind == "deepspeed" else installed.python
        environment["PATH"] = f"{Path(python).parent}:{os.environ.get('PATH', '')}"  # DeepSpeed compiles with the ninja beside its Python
        script = "python_pipeline.py" if "schedule" in spec else "python_loop.py"
        done = run_together([python, str(HERE / script), json.dumps(spec)],
                            [dict(environment, **rank) for rank in rank_environments(processes)], TIMEOUT_S, has_row)
        rows = [row_of(output) for output in done.outputs]
    return summarize(name, spec, done, rows)


def summarize(name, spec, done, rows):
    warmup, ended, ranks = spec["warmup"], rows[0]["ended"], spec["ranks"]
    step_ms = statistics.median(rows[0]["step_ms"][warmup:])
    known = [row["losses"] for row in rows if row["losses"]]  # of a pipeline only the last stage may know them
    losses = [sum(values) / len(known) for values in zip(*known)]
    wall_ms = (ended[-1] - ended[warmup - 1]) / (len(ended) - warmup) * 1e3 if warmup > 0 else None
    # A ring all-reduce of fp32 gradients sends 2 (n - 1) / n of them; peers do not say what they send, and with ZeRO or bf16 it is not this.
    formula = 0 if ranks == 1 else None if spec["zero_stage"] or spec["dtype"] != "fp32" else round(2 * (ranks - 1) / ranks * 4 * parameters(spec))
    return dict(engine=name, size=spec["size"], zero_stage=spec["zero_stage"], dtype=spec["dtype"], ranks=ranks, threads=spec["threads"], steps=len(ended) - warmup, same_batch=spec["same_batch"],
                step_ms=round(step_ms, 3), wall_ms=None if wall_ms is None else round(wall_ms, 3),
                tokens_per_s=round(samples_per_step(spec) * spec["length"] / step_ms * 1e3, 1),
                peak_rss_mb=round(max(row["peak_rss_bytes"] for row in rows) / 2**20, 1),
                process_s=round(done.wall_s, 3), start_s=round(done.wall_s - (ended[-1] - ended[0]), 3),
                activation_bytes=rows[0].get("activation_bytes", 0), chosen=rows[0].get("chosen"),
                offload_read_bytes=rows[0].get("offload_read_bytes"), offload_write_bytes=rows[0].get("offload_write_bytes"),
                sent_bytes=rows[0].get("sent_bytes", formula), sent_is_formula="sent_bytes" not in rows[0] and formula is not None,
                loss_first=losses[0], loss_last=losses[-1], other_cpu_pct=round(done.other_cpu_pct, 1), clean_exit=done.clean)
