#!/usr/bin/env python3
"""A text to token ids: `trireme bench tokenizer` beside PyPI tokenizers, with the same numbers of threads, in turns.

    .venv/bin/python benchmarks/tokenization.py TEXT [--trireme build/release/bin/trireme] [--threads 1,2] [--rounds 5] [--megabytes 5] [TOKENIZER...]

TOKENIZER is a tokenizer.json or a folder with one; without any, tests/tokenizer/train_tokenizers.py trains those of GPT-2, Llama 2 and 3, Qwen2, SmolLM2, BERT and T5 on TEXT, with
8000 tokens. tokenizers encodes the lines of the text as a batch, which is how it uses threads; trireme the text in one piece. Medians over rounds, in MB/s.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEER = """
import sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
lines = open(sys.argv[2], encoding="utf-8", newline="").read().splitlines(keepends=True)
best = []
for _ in range(3):
    start = time.perf_counter()
    tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    best.append(time.perf_counter() - start)
print(sorted(best)[1])
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("tokenizers", nargs="*", type=pathlib.Path)
    parser.add_argument("--trireme", type=pathlib.Path, default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = folder / "text"
        content = args.text.read_bytes().decode(errors="ignore")
        while len(content.encode()) < args.megabytes * 1e6:
            content += content
        text.write_bytes(content.encode()[:int(args.megabytes * 1e6)].decode(errors="ignore").encode())
        chosen = args.tokenizers
        if not chosen:
            sys.path.insert(0, str(ROOT / "tests/tokenizer"))
            import train_tokenizers
            chosen = train_tokenizers.for_speed(folder, content)
        print(f"{'tokenizer':<12} {'threads':>7} {'trireme MB/s':>13} {'tokenizers MB/s':>16} {'ratio':>6}")
        for tokenizer in chosen:
            file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
            for threads in args.threads.split(","):
                ours, theirs = [], []
                for _ in range(args.rounds):
                    rows = subprocess.run([args.trireme, "bench", "tokenizer", "--tokenizer", file, "--text", text, "--threads", threads, "--repeats", "3", "--json"], check=True, capture_output=True, text=True)
                    ours.append(json.loads(rows.stdout)["mb_per_s"])
                    environment = dict(os.environ, RAYON_NUM_THREADS=threads, TOKENIZERS_PARALLELISM="true")
                    seconds = subprocess.run([sys.executable, "-c", PEER, file, text], check=True, capture_output=True, text=True, env=environment).stdout
                    theirs.append(text.stat().st_size / float(seconds) / 1e6)
                ours, theirs = statistics.median(ours), statistics.median(theirs)
                print(f"{file.parent.name:<12} {threads:>7} {ours:>13.1f} {theirs:>16.1f} {ours / theirs:>6.1f}")


if __name__ == "__main__":
    main()
