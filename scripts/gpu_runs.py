"""The ways in which scripts/check_gpu trains a small GPT, and what each is compared with. Python's standard library only."""
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from processes import Cut, run_command  # of benchmarks/, whose folder check_gpu adds

ROOT = Path(__file__).resolve().parent.parent

STEPS = 12
EXACT, FP32, HALF = 0.0, 2e-4, 3e-2  # relative differences of losses: the same bits; another order of sums; two half-precision formats


@dataclass
class Run:
    name: str
    like: str = "cuda"  # what it is compared with; "" is compared with nothing
    allowed: float = FP32
    ranks: int = 1
    set: dict = field(default_factory=dict)
    resumed: bool = False  # stopped and resumed in the middle
    killed: str = ""  # the fault (docs/failures.md) that ends a rank once, after which all are started again
    apart: bool = False  # ranks have a GPU each


def zero(stage, **more):
    return {f"engine.zero_optimization.{key}": value for key, value in {"stage": stage, **more}.items()}


def activations(policy, **more):
    return {f"engine.activation_checkpointing.{key}": value for key, value in {"policy": policy, **more}.items()}


HOST = dict(device="cpu")
FILES = dict(device="nvme", nvme_path="FOLDER/states", buffer_count=3, pipeline_read=True, pipeline_write=True)
PARAMETER_FILES = dict(device="nvme", nvme_path="FOLDER/parameters", buffer_count=3, max_in_cpu=0)
BF16, FP16 = {"engine.bf16.enabled": True}, {"engine.fp16.enabled": True, "engine.fp16.initial_scale_power": 8}
AUTOCAST = {"engine.torch_autocast.enabled": True, "engine.torch_autocast.dtype": "bfloat16"}
DROPOUT = {"model.dropout": 0.1}


def optimizer(kind, **params):
    return {"engine.optimizer.type": kind, "engine.optimizer.params": {"lr": 3e-4, **params}}


def runs():
    yield Run("cpu", like="")
    yield Run("cuda", like="cpu")
    yield Run("again", allowed=EXACT)
    yield Run("resumed", allowed=EXACT, resumed=True)
    for stage in (1, 2, 3):
        yield Run(f"zero-{stage}", set=zero(stage))
    for stage in (0, 1, 2, 3):
        yield Run(f"offload-host-{stage}", set=zero(stage, offload_optimizer=HOST))
    yield Run("offload-host-half", set=zero(1, offload_optimizer={**HOST, "ratio": 0.5}))
    yield Run("offload-host-pageable", like="offload-host-1", allowed=EXACT, set=zero(1, offload_optimizer={**HOST, "pin_memory": False}))
    yield Run("offload-host-delayed", allowed=0.3, set=zero(1, offload_optimizer={**HOST, "delayed_update": True}))
    yield Run("offload-files-1", like="offload-host-1", allowed=EXACT, set=zero(1, offload_optimizer=FILES))
    yield Run("offload-parameters-host", like="zero-3", set=zero(3, offload_param=HOST))
    yield Run("offload-parameters-files", like="offload-parameters-host", allowed=EXACT, set=zero(3, offload_param=PARAMETER_FILES))
    yield Run("offload-all-host", like="offload-host-3", set=zero(3, offload_optimizer=HOST, offload_param=HOST))
    yield Run("offload-all-files", like="offload-all-host", allowed=EXACT, set=zero(3, offload_optimizer=FILES, offload_param=PARAMETER_FILES))
    yield Run("offload-resumed", like="offload-all-files", allowed=EXACT, set=zero(3, offload_optimizer=FILES, offload_param=PARAMETER_FILES), resumed=True)
    for policy in ("recompute", "host", "nvme", "recompute_host", "recompute_nvme"):
        yield Run(f"activations-{policy}", allowed=EXACT, set=activations(policy, nvme_path="FOLDER/activations"))
    yield Run("activations-auto", allowed=EXACT, set=activations("auto", nvme_path="FOLDER/activations", memory_budget="20MB"))
    yield Run("dropout", like="", set=DROPOUT)
    yield Run("dropout-recompute", like="dropout", allowed=EXACT, set={**DROPOUT, **activations("recompute")})
    yield Run("dropout-resumed", like="dropout", allowed=EXACT, set=DROPOUT, resumed=True)
    yield Run("tf32", allowed=HALF, set={"training.tf32": True})
    yield Run("bf16-cpu", like="", set=BF16)
    yield Run("bf16", like="bf16-cpu", allowed=HALF, set=BF16)
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):  # emulated on the CPU, by the GPU's own products
        fp8 = {**BF16, "engine.fp8.enabled": True, "engine.fp8.recipe": recipe}
        yield Run(f"fp8-{recipe}-cpu", like="", set=fp8)
        yield Run(f"fp8-{recipe}", like=f"fp8-{recipe}-cpu", allowed=HALF, set=fp8)
    yield Run("bf16-offload", like="bf16", allowed=EXACT, set={**BF16, **zero(1, offload_optimizer=HOST)})
    yield Run("bf16-all-files", like="bf16", allowed=HALF, set={**BF16, **zero(3, offload_optimizer=FILES, offload_param=PARAMETER_FILES)})
    yield Run("bf16-recompute", like="bf16", allowed=EXACT, set={**BF16, **activations("recompute")})
    yield Run("fp16", allowed=HALF, set=FP16)
    yield Run("fp16-offload", like="fp16", allowed=EXACT, set={**FP16, **zero(1, offload_optimizer=HOST)})
    yield Run("autocast", like="bf16", allowed=HALF, set=AUTOCAST)
    yield Run("autocast-recompute", like="autocast", allowed=EXACT, set={**AUTOCAST, **activations("recompute")})
    for kind, params in (("SGD", {"momentum": 0.9}), ("Lamb", {}), ("Lion", {}), ("Adagrad", {}), ("RMSprop", {}), ("AdamW", {"state_dtype": "bf16"}), ("AdamW", {"state_dtype": "int8"})):
        name = f"{kind}-{params.get('state_dtype', 'fp32')}".lower()
        yield Run(f"{name}-cpu", like="", set=optimizer(kind, **params))
        yield Run(name, like=f"{name}-cpu", set=optimizer(kind, **params))
    for stage in (0, 1, 2, 3):
        yield Run(f"2-ranks-zero-{stage}", ranks=2, set=zero(stage))
    yield Run("2-ranks-bf16", like="bf16", allowed=HALF, ranks=2, set={**BF16, **zero(3)})
    yield Run("2-ranks-offload-files", ranks=2, set=zero(3, offload_optimizer=FILES, offload_param=PARAMETER_FILES))
    yield Run("2-ranks-tensor", ranks=2, set={"parallel.tensor": 2})
    yield Run("2-ranks-sequence", ranks=2, set={"parallel.tensor": 2, "parallel.sequence_parallel": True})
    yield Run("2-ranks-ring", ranks=2, set={"parallel.context": 2})
    yield Run("2-ranks-ulysses", ranks=2, set={"parallel.context": 2, "parallel.context_kind": "ulysses"})
    for schedule in ("1f1b", "gpipe", "interleaved", "zero-bubble"):
        yield Run(f"2-ranks-{schedule}", ranks=2, set={"parallel.pipe": 2, "parallel.schedule": schedule})
    yield Run("2-ranks-pipeline-offload", like="2-ranks-1f1b", ranks=2, set={"parallel.pipe": 2, **zero(1, offload_optimizer=HOST)})
    yield Run("2-ranks-pipeline-files", like="2-ranks-1f1b", ranks=2, set={"parallel.pipe": 2, **activations("recompute_nvme", nvme_path="FOLDER/activations")})
    in_backward, while_saving = "rank=1,step=8,phase=backward,kind=kill", "rank=1,step=6,phase=checkpoint,kind=kill"
    yield Run("2-ranks-killed-zero-3", like="2-ranks-zero-3", allowed=EXACT, ranks=2, set=zero(3), killed=in_backward)
    yield Run("2-ranks-killed-files", like="2-ranks-bf16", allowed=EXACT, ranks=2, killed=while_saving,
              set={**BF16, **zero(3, offload_optimizer=FILES, offload_param=PARAMETER_FILES)})
    yield Run("2-ranks-killed-pipeline", like="2-ranks-1f1b", allowed=EXACT, ranks=2, set={"parallel.pipe": 2}, killed=while_saving)
    yield Run("4-ranks", ranks=4, set={"parallel.pipe": 2, **zero(1)})


def several_runs(gpus):
    """The layouts of ranks with a GPU each, beside one rank: those that so many GPUs can train."""
    four = {"parallel.tensor": 2, **zero(3)}
    runs = [Run("one", like="", apart=True),
            *(Run(f"{name}-{ranks}", like="one", ranks=ranks, set=zero(stage), apart=True)
              for name, stage in (("ddp", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)) for ranks in ((2, gpus) if gpus in (4, 8) else (2,))),
            Run("tensor-2", like="one", ranks=2, set={"parallel.tensor": 2}, apart=True),
            Run("pipeline-2", like="one", ranks=2, set={"parallel.pipe": 2}, apart=True),
            Run("context-2", like="one", ranks=2, set={"parallel.context": 2}, apart=True),
            Run("zero3-tensor-4", like="one", ranks=4, set=four, apart=True)]
    return [one for one in runs if one.ranks <= gpus]


def run_file():
    return {"model": {"type": "gpt", "layers": 4, "hidden": 256, "heads": 4, "sequence_length": 128, "vocab_size": 256},
            "data": {"type": "text", "train": [str(ROOT / "docs" / "configuration.md")], "tokenizer": "bytes"},
            "training": {"steps": STEPS, "seed": 7, "tf32": False},
            "engine": {"train_batch_size": 16, "gradient_clipping": 1.0,
                       "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}}}}


def with_settings(config, settings, folder):
    for path, value in settings.items():
        at = config
        *parents, last = path.split(".")
        for key in parents:
            at = at.setdefault(key, {})
        at[last] = value
    return json.loads(json.dumps(config).replace("FOLDER", str(folder)))


def backend_of(device):
    """Of ranks with a GPU each; it is required, so that nothing goes through the host unseen."""
    return "gloo" if device == "cpu" else "nccl"


def train(one, options, timeout):
    """A row: losses, the most waits of the host and bytes of the GPU, and an error's last lines or ""."""
    folder = options.folder / one.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    device = "cpu" if one.name == "cpu" or one.name.endswith("-cpu") else options.device
    saves = {"training.checkpoint_every": STEPS // 4} if one.killed else {}
    if one.apart and device != "cpu":
        device = "cuda"
    config = with_settings(run_file(), {"training.device": device, **saves, **one.set}, folder)
    config["engine"]["train_micro_batch_size_per_gpu"] = 4 if one.ranks < 4 else 2
    (folder / "run.json").write_text(json.dumps(config, indent=1))
    command = [options.bin / "trireme", "train", folder / "run.json", "-n", str(one.ranks), "--out", folder / "out"]
    command += [part for setting in options.set for part in ("--set", setting)]
    if one.killed:
        command += ["--max-restarts", "1"]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")}  # else cuBLAS may sum in another order
    if one.killed:
        environment["TRIREME_FAULT"] = one.killed
    if one.apart:
        environment["TRIREME_BACKEND"] = "auto" if one.ranks == 1 else backend_of(options.device)
    parts = [[]] if not one.resumed else [["--set", f"training.steps={STEPS // 2}"], ["--resume", "auto"]]
    error = ""
    with open(folder / "log.txt", "w") as log:
        for part in parts:
            try:
                status = run_command([*command, *part], timeout, log=log, environment=environment, cwd=ROOT)
                error = f"exit status {status}" if status != 0 else ""
            except Cut as cut:
                error = str(cut)
            if error:
                break
    for left in ("states", "parameters", "activations"):
        shutil.rmtree(folder / left, ignore_errors=True)
    text = (folder / "log.txt").read_text()
    if error:
        return {"losses": [], "error": f"{error}: " + " | ".join(text.strip().splitlines()[-6:])}
    if one.killed and "starting all ranks again" not in text:
        return {"losses": [], "error": "no rank was killed and started again"}
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return {"losses": [row["loss"] for row in rows], "error": "", "host_waits": max((row.get("host_syncs", 0) for row in rows), default=0),
            "gpu_bytes": max((row.get("device_peak_bytes", 0) for row in rows), default=0)}


def chosen(names):
    everything = {one.name: one for one in runs()}
    wanted = [name for name in everything if not names or any(name.startswith(begin) for begin in names)]
    for name in wanted:  # grows
        if everything[name].like and everything[name].like not in wanted:
            wanted.append(everything[name].like)
    return [one for name, one in everything.items() if name in wanted]


def difference(losses, reference):
    if len(losses) != len(reference) or not losses:
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference))


def print_runs(all_runs, seen):
    """A table of the runs of which there is a row, by name; returns how many are not as expected."""
    failed = 0
    print(f"{'run':26} {'like':24} {'difference':>10} {'allowed':>8}  host waits  GPU MB")
    for one in all_runs:
        row = seen.get(one.name)
        if row is None or (one.like and not row["error"] and one.like not in seen):
            continue  # left
        apart = difference(row["losses"], seen[one.like]["losses"]) if one.like and not row["error"] else 0.0
        good = not row["error"] and apart <= one.allowed
        failed += not good
        print(f"{one.name:26} {one.like or '-':24} {apart:10.1e} {one.allowed:8.0e}  {row.get('host_waits', 0):10}  {row.get('gpu_bytes', 0) / 1e6:6.0f}"
              f"{'' if good else '  FAILED ' + row['error']}")
    return failed
