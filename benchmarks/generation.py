"""Decodes text greedily with `trireme generate` and with transformers, in turns: tokens/s after the first token, and whether the ids are the same.
For one prompt at a time also the share of the memory's bandwidth: a token reads every weight once (an embedding only if the head is it), and the sum of a large
array is what memory gives.

    .venv/bin/python benchmarks/generation.py data/smollm2 data/austen/train.txt [--batches 1,8] [--tokens 64] [--rounds 3] [--dtype fp32] [--weights int8]

Each run is a process of its own on the cores that this one may use. Prompts are beginnings of paragraphs, 12 words each; a batch has prompts of different lengths, which transformers pads on the left.
With --weights int8 only Trireme's weights are int8; transformers computes in --dtype.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from turns import rotated

ROOT = pathlib.Path(__file__).resolve().parents[1]


def peer(spec):
    """In a process of its own: transformers."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import time

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(spec["folder"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(spec["folder"], dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[spec["dtype"]]).eval()
    ids, after, seconds = [], 0, 0.0
    for begin in range(0, len(spec["prompts"]), spec["batch"]):
        batch = tokenizer(spec["prompts"][begin:begin + spec["batch"]], return_tensors="pt", padding=True)
        width, took = batch["input_ids"].shape[1], []
        for count in (1, spec["tokens"]):
            start = time.perf_counter()
            found = model.generate(**batch, max_new_tokens=count, do_sample=False, pad_token_id=tokenizer.pad_token_id)
            took.append(time.perf_counter() - start)
        rows = [row[width:].tolist() for row in found]
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        rows = [row[:min([row.index(end) + 1 for end in ends if end in row] + [len(row)])] for row in rows]
        ids += rows
        after += sum(len(row) - 1 for row in rows)
        seconds += took[1] - took[0]
    print(json.dumps({"ids": ids, "tokens_per_s": after / seconds}))


def ours(spec, trireme):
    with tempfile.TemporaryDirectory() as work:
        prompts = pathlib.Path(work) / "prompts"
        prompts.write_text("\n".join(spec["prompts"]) + "\n")
        done = subprocess.run([trireme, "generate", spec["folder"], "--prompts", prompts, "--batch", str(spec["batch"]), "--max-tokens", str(spec["tokens"]),
                               "--temperature", "0", "--dtype", spec["dtype"], "--json", *(["--weights", "int8"] if spec["int8"] else [])], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme generate failed: {done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    seconds, after = 0.0, 0
    for begin in range(0, len(rows), spec["batch"]):
        count = sum(len(row["ids"]) - 1 for row in rows[begin:begin + spec["batch"]])
        seconds += count / rows[begin]["tokens_per_s"]
        after += count
    return {"ids": [row["ids"] for row in rows], "tokens_per_s": after / seconds}


def weight_bytes(folder, dtype, int8):
    """What a token reads, in the type that it is computed in. int8 has a float for each 64 inputs."""
    from safetensors import safe_open

    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", True)
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as tensors:
            for name in tensors.keys():
                shape = tensors.get_slice(name).get_shape()
                is_read = len(shape) == 2 and (tied or "embed_tokens" not in name) and not (tied and "lm_head" in name)
                if is_read:
                    row = shape[1] + 4 * -(-shape[1] // 64) if int8 else shape[1] * {"fp32": 4, "bf16": 2}[dtype]
                    total += shape[0] * row
    return total


def memory_speed():
    """Bytes/s that the cores of this process read together: the best of several."""
    import time

    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    array = torch.ones(200_000_000)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        array.sum()
        best = min(best, time.perf_counter() - start)
    return array.nbytes / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--trireme", type=pathlib.Path, default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--weights", choices=["int8"])
    args = parser.parse_args()
    paragraphs = [" ".join(text.split()) for text in args.text.read_text().split("\n\n") if len(text) > 200]
    prompts = [" ".join(text.split()[:8 + i % 8]) for i, text in enumerate(paragraphs[::37][:args.prompts])]
    print(f"{args.dtype}{', weights int8' if args.weights else ''}, {len(prompts)} prompts, {args.tokens} tokens each, medians of {args.rounds} runs")
    print(f"{'batch':>5} {'trireme tokens/s':>17} {'transformers':>13} {'ratio':>6}  prompts with the same ids")
    memory = []
    for batch in (int(size) for size in args.batches.split(",")):
        spec = {"folder": str(args.folder.resolve()), "prompts": prompts, "batch": batch, "tokens": args.tokens, "dtype": args.dtype, "int8": args.weights == "int8"}
        found = {"trireme": [], "transformers": []}
        for turn in range(args.rounds):
            memory += [memory_speed()] if batch == 1 else []
            for engine in rotated(list(found), turn):
                if engine == "trireme":
                    found[engine].append(ours(spec, args.trireme))
                    continue
                done = subprocess.run([sys.executable, __file__, json.dumps(spec)], capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"transformers failed: {done.stderr}")
                found[engine].append(json.loads(done.stdout.splitlines()[-1]))
        speed = {engine: statistics.median(run["tokens_per_s"] for run in runs) for engine, runs in found.items()}
        ratio = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(found["trireme"], found["transformers"]))
        same = sum(a == b for a, b in zip(found["trireme"][0]["ids"], found["transformers"][0]["ids"]))
        print(f"{batch:5} {speed['trireme']:17.1f} {speed['transformers']:13.1f} {ratio:5.2f}x  {same} of {len(prompts)}", flush=True)
        if batch == 1:
            reads = speed["trireme"] * weight_bytes(args.folder, args.dtype, args.weights == "int8")
            print(f"      weights are read at {reads / 1e9:.1f} GB/s, {reads / statistics.median(memory):.0%} of what memory gives, "
                  f"{statistics.median(memory) / 1e9:.1f} GB/s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        peer(json.loads(sys.argv[1]))
    else:
        main()
