"""Decodes text greedily with `trireme generate` and with transformers, in turns: prompt tokens/s, tokens/s after the first token, and whether the ids are the same.
Where they are not, it prints by how much transformers' logits of the first two tokens that differ are apart.
For one prompt at a time also the share of the memory's bandwidth: a token reads every weight once (an embedding only if the head is it), and the sum of a large
array just before and after is what memory gives.

    .venv/bin/python benchmarks/generation.py data/smollm2 data/austen/train.txt [--batches 1,8,32] [--prompts 8] [--words 12] [--tokens 64] [--rounds 3] [--dtype fp32] [--weights int8]

With --gguf the peer is llama.cpp: a file that its convert_hf_to_gguf.py made of the folder with --outtype f32 or bf16, read by the llama_cpp of --gguf-python.

Each run is a process of its own on the cores that this one may use. Prompts are beginnings of paragraphs, of --words words and up to a third fewer, at least as many as the batch; transformers pads them on the left.
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


def load_peer(spec):
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(spec["folder"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(spec["folder"], dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[spec["dtype"]]).eval()
    return tokenizer, model


def gaps(spec):
    """In a process of its own: how far apart transformers' logits of the first tokens that differ are."""
    import torch

    tokenizer, model = load_peer(spec)
    found = []
    for prompt, ours, theirs in spec["differ"]:
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if same is None:  # one is the other's beginning
            found.append(None)
            continue
        with torch.inference_mode():
            logits = model(torch.tensor([tokenizer(prompt)["input_ids"] + theirs[:same]])).logits[0, -1].float()
        found.append([same, (logits[theirs[same]] - logits[ours[same]]).item()])
    print(json.dumps(found))


def peer(spec):
    """In a process of its own: transformers."""
    import time

    tokenizer, model = load_peer(spec)
    ids, after, seconds, read, reading = [], 0, 0.0, 0, 0.0
    model.generate(**tokenizer(spec["prompts"][:1], return_tensors="pt"), max_new_tokens=2, do_sample=False, pad_token_id=tokenizer.pad_token_id)  # warm
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
        read += int(batch["attention_mask"].sum())
        reading += took[0]
    print(json.dumps({"ids": ids, "tokens_per_s": after / seconds, "prompt_tokens_per_s": read / reading}))


def ours(spec, trireme):
    first = spec["prompts"][:spec["batch"]]
    with tempfile.TemporaryDirectory() as work:
        prompts = pathlib.Path(work) / "prompts"
        prompts.write_text("\n".join(first + spec["prompts"]) + "\n")  # the first batch is warmth, as the others have
        done = subprocess.run([trireme, "generate", spec["folder"], "--prompts", prompts, "--batch", str(spec["batch"]), "--max-tokens", str(spec["tokens"]),
                               "--temperature", "0", "--dtype", spec["dtype"], "--json", *(["--weights", "int8"] if spec["int8"] else [])], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme generate failed: {done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()][len(first):]
    seconds, after, read, reading = 0.0, 0, 0, 0.0
    for begin in range(0, len(rows), spec["batch"]):
        count = sum(len(row["ids"]) - 1 for row in rows[begin:begin + spec["batch"]])
        seconds += count / rows[begin]["tokens_per_s"]
        after += count
        tokens = sum(row["prompt_tokens"] for row in rows[begin:begin + spec["batch"]])
        read += tokens
        reading += tokens / rows[begin]["prompt_tokens_per_s"]
    return {"ids": [row["ids"] for row in rows], "tokens_per_s": after / seconds, "prompt_tokens_per_s": read / reading}


def llama_cpp(spec, python):
    """In a process of its own: llama.cpp, given the tokens of the prompts."""
    from tokenizers import Tokenizer

    folder = pathlib.Path(spec["folder"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = json.loads((folder / "config.json").read_text()).get("eos_token_id", [])
    task = {**spec, "ids": [tokenizer.encode(prompt).ids for prompt in spec["prompts"]], "end": end if isinstance(end, list) else [end]}
    return [python, ROOT / "benchmarks/python_llama_cpp.py", json.dumps(task)]


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
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--weights", choices=["int8"])
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--gguf-python", default=sys.executable)
    args = parser.parse_args()
    batches = [int(size) for size in args.batches.split(",")]
    paragraphs = [" ".join(text.split()) for text in args.text.read_text().split("\n\n") if len(text.split()) > max(30, args.words)]
    texts = paragraphs[::max(1, len(paragraphs) // max(args.prompts, *batches, 40))]
    all_prompts = [" ".join(text.split()[:args.words - i % (args.words // 3 + 1)]) for i, text in enumerate(texts)]
    peer_name = "llama.cpp" if args.gguf else "transformers"
    print(f"{args.dtype}{', weights int8' if args.weights else ''}, {args.tokens} tokens a prompt, medians of {args.rounds} runs; tokens/s of trireme and {peer_name}, ratio")
    print(f"{'batch':>5} {'prompt:':>8} {'':>13} {'':>6} {'text:':>8} {'':>13} {'':>6}  prompts with the same ids")
    for batch in batches:
        prompts = all_prompts[:max(args.prompts, batch)]
        spec = {"folder": str(args.folder.resolve()), "prompts": prompts, "batch": batch, "tokens": args.tokens, "dtype": args.dtype, "int8": args.weights == "int8"}
        spec["gguf"] = str(args.gguf.resolve()) if args.gguf else None
        found, memory = {"trireme": [], peer_name: []}, []
        for turn in range(args.rounds):
            for engine in rotated(list(found), turn):
                if engine == "trireme":
                    before = memory_speed() if batch == 1 else 0
                    found[engine].append(ours(spec, args.trireme))
                    memory += [(before + memory_speed()) / 2] if batch == 1 else []
                    continue
                command = llama_cpp(spec, args.gguf_python) if args.gguf else [sys.executable, __file__, json.dumps(spec)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"{peer_name} failed: {done.stderr}")
                found[engine].append(json.loads(done.stdout.splitlines()[-1]))
        line = f"{batch:5}"
        for what in ("prompt_tokens_per_s", "tokens_per_s"):
            speed = {engine: statistics.median(run[what] for run in runs) for engine, runs in found.items()}
            ratio = statistics.median(a[what] / b[what] for a, b in zip(found["trireme"], found[peer_name]))
            line += f" {speed['trireme']:8.1f} {speed[peer_name]:13.1f} {ratio:5.2f}x"
        differ = [row for row in zip(prompts, found["trireme"][0]["ids"], found[peer_name][0]["ids"]) if row[1] != row[2]]
        print(f"{line}  {len(prompts) - len(differ)} of {len(prompts)}", flush=True)
        if differ:
            done = subprocess.run([sys.executable, __file__, json.dumps({**spec, "differ": differ})], capture_output=True, text=True, check=True)
            for (prompt, _, _), gap in zip(differ, json.loads(done.stdout.splitlines()[-1])):
                print(f"      {prompt[:40]!r}: " + (f"token {gap[0]}, logits {gap[1]:.2g} apart" if gap else "one text is the other's beginning"), flush=True)
        if batch == 1:
            size = weight_bytes(args.folder, args.dtype, args.weights == "int8")
            reads = [run["tokens_per_s"] * size for run in found["trireme"]]
            share = statistics.median(speed / gives for speed, gives in zip(reads, memory))
            print(f"      weights are read at {statistics.median(reads) / 1e9:.1f} GB/s, {share:.0%} of what memory gives, {statistics.median(memory) / 1e9:.1f} GB/s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        (gaps if "differ" in given else peer)(given)
    else:
        main()
