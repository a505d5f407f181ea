"""What is trained: four sizes of GPT on tokens that anybody can repeat. Standard library only."""
import array
import json
import sys

SEED = 1234
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1

# micro and accumulate are those of one rank; `train` is what a reader compares, nano is only about what an engine adds to a step.
SIZES = {
    "nano": dict(layers=2, hidden=64, heads=2, length=32, vocab=256, micro=1, accumulate=1, steps=1000, warmup=100, threads=1),
    "tiny": dict(layers=4, hidden=128, heads=4, length=128, vocab=256, micro=8, accumulate=1, steps=200, warmup=20),
    "small": dict(layers=6, hidden=384, heads=6, length=256, vocab=8192, micro=4, accumulate=4, steps=8, warmup=2),
    "medium": dict(layers=12, hidden=768, heads=12, length=512, vocab=50304, micro=1, accumulate=4, steps=3, warmup=1),
}


def make_spec(size, ranks, threads, steps=None, warmup=None):
    """Everything an engine needs to know. `threads` are shared by the ranks, and so is the batch of one rank where it can be divided:
    then every number of ranks trains on the same batches. steps includes the warm-up."""
    spec = dict(SIZES[size], size=size, ranks=ranks, seed=SEED)
    measured = spec["steps"] if steps is None else steps
    spec["warmup"] = min(spec["warmup"] if warmup is None else warmup, measured)
    spec["steps"] = spec["warmup"] + measured
    spec["threads"] = spec.get("threads") or max(1, threads // ranks)
    spec["same_batch"] = True
    if spec["accumulate"] % ranks == 0:
        spec["accumulate"] //= ranks
    elif spec["micro"] % ranks == 0:
        spec["micro"] //= ranks
    else:
        spec["same_batch"] = False
    return spec


# Micro-batches of one pipeline: enough of them that a bubble is seen, few enough that it matters.
PIPELINES = {
    "tiny": dict(SIZES["tiny"], accumulate=4, steps=40, warmup=5),
    "small": dict(SIZES["small"], accumulate=4, steps=6, warmup=2),
    "medium": dict(SIZES["medium"], accumulate=4, steps=3, warmup=1),
}


def make_pipeline_spec(size, stages, steps=None, warmup=None, partition=None):
    """The same for one pipeline: one thread a stage, one data-parallel replica, an untied head, because torch's pipelines cannot tie.
    `partition` is Trireme's; the peers cut after the same number of blocks."""
    spec = dict(PIPELINES[size], size=size, ranks=1, stages=stages, threads=1, seed=SEED, tie=False, partition=partition, same_batch=True)
    measured = spec["steps"] if steps is None else steps
    spec["warmup"] = min(spec["warmup"] if warmup is None else warmup, measured)
    spec["steps"] = spec["warmup"] + measured
    return spec


def samples_per_step(spec):
    return spec["micro"] * spec["accumulate"] * spec["ranks"]


def parameters(spec):
    """Trained numbers of the GPT with tied embeddings."""
    hidden = spec["hidden"]
    block = 12 * hidden * hidden + 13 * hidden
    return (spec["vocab"] + spec["length"]) * hidden + spec["layers"] * block + 2 * hidden


def split_mix(x):
    """A well mixed 64-bit number from a counter (Steele et al. 2014)."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def write_tokens(path, spec):
    """Writes little-endian uint16 tokens: sample s counts up modulo the vocabulary from a start in a stride, both made of (seed, s)."""
    tokens = array.array("H")
    for sample in range(spec["steps"] * samples_per_step(spec)):
        z = split_mix((spec["seed"] << 32) + sample)
        start, stride = z % spec["vocab"], 1 + (z >> 32) % 16
        tokens.extend((start + stride * t) % spec["vocab"] for t in range(spec["length"]))
    tokens.append(0)  # the target of the very last token
    if sys.byteorder == "big":
        tokens.byteswap()
    path.write_bytes(tokens.tobytes())


def offload_of(spec):
    """What goes into "zero_optimization": the same for Trireme and DeepSpeed."""
    kinds = {"optimizer": dict(buffer_count=4, pipeline_read=True, pipeline_write=True), "param": dict(buffer_count=5, buffer_size=100_000_000, max_in_cpu=0)}
    return {f"offload_{kind}": dict(kinds[kind], device="nvme", nvme_path=spec["nvme_path"], pin_memory=True) for kind in spec["nvme"]}


AIO = {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False, "overlap_events": True}


def write_run_file(path, spec):
    """Writes the run file of `trireme train`: same model, same order of samples, no clipping, nothing but training."""
    run = {
        "model": {"type": "gpt", "layers": spec["layers"], "hidden": spec["hidden"], "heads": spec["heads"],
                  "sequence_length": spec["length"], "vocab_size": spec["vocab"]},
        "data": {"type": "tokens", "train": [spec["tokens"]], "shuffle": False},
        "training": {"steps": spec["steps"], "seed": spec["seed"]},
        "engine": {
            "train_micro_batch_size_per_gpu": spec["micro"],
            "gradient_accumulation_steps": spec["accumulate"],
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": spec["zero_stage"]},
            "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": WEIGHT_DECAY}},
        },
    }
    if spec.get("nvme"):
        run["engine"]["zero_optimization"].update(offload_of(spec))
        run["engine"]["aio"] = AIO
    if spec.get("step_in_backward"):
        run["engine"]["step_in_backward"] = True
    if "activations" in spec:
        run["engine"]["activation_checkpointing"] = spec["activations"]
    if spec["shard_all"]:
        run["engine"]["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    if spec["dtype"] == "bf16":
        run["engine"]["bf16"] = {"enabled": True}
    if not spec.get("tie", True):
        run["model"]["tie_embeddings"] = False
    if "schedule" in spec:
        run["parallel"] = {"pipe": spec["stages"], "schedule": spec["schedule"]}
        if spec["partition"]:
            run["engine"]["pipeline"] = {"partition": spec["partition"]}
    if "tensor" in spec:
        run["parallel"] = {"tensor": spec["tensor"], "sequence_parallel": spec["sequence_parallel"]}
    path.write_text(json.dumps(run, indent=1))


def rank_positions(spec, rank):
    """For each step, for each micro-batch: the samples of this rank. Like Trireme's sampler: rank r takes every ranks-th sample, from r on."""
    together = spec["micro"] * spec["ranks"]
    for step in range(spec["steps"]):
        first = step * spec["accumulate"] * together
        yield [list(range(first + m * together + rank, first + (m + 1) * together, spec["ranks"])) for m in range(spec["accumulate"])]
