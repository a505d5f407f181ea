#!/usr/bin/env python3
"""A corpus larger than memory: `trireme data tokenize` and `trireme train` in a control group of so many bytes.

    benchmarks/large_corpus.py FOLDER [--gigabytes 2] [--limit 1] [--parts tokenize,train] [--threads 2,16] [--steps 20]

FOLDER gets the corpus and is removed at the end; it needs 7 times --gigabytes of a disk. The corpus is the novels of --novels, whose paragraphs are shuffled again and again. It is read as one text, as JSON lines with
one of nearly 32 MB among them, the same packed, and JSON lines of nearly 32 MB alone. Pages of files count in a control group too, but the system may take them, so files are dropped from its cache before each row. "held" is the
most that it could not take: what a group is killed for. "peak" is the largest resident set of one process, mapped files included. Needs root or a group of one's own.
"""
import argparse
import gzip
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True

from offload_memory import Limit  # noqa: E402
from tables import print_table  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LONG_LINE = 33_000_000  # bytes of text: with its escapes just below the 32 MiB that a line may have
SEQUENCE = 512


def paragraphs(novels, size):
    """Texts of about a paragraph each, `size` bytes of them."""
    known = [part + "\n\n" for file in sorted(novels.glob("*.txt")) for part in file.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    order = random.Random(1234)
    while size > 0:
        order.shuffle(known)
        for part in known:
            if size <= 0:
                return
            size -= len(part.encode())
            yield part


def gathered(parts, least):
    """The same texts, several together so that each has at least so many bytes."""
    held, size = [], 0
    for part in parts:
        held.append(part)
        size += len(part.encode())
        if size >= least:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def line(value):
    return json.dumps(value, ensure_ascii=False) + "\n"


def write_text(folder, novels, size):
    with (folder / "books.txt").open("w", encoding="utf-8", newline="") as text:
        for part in gathered(paragraphs(novels, size), 1 << 20):
            text.write(part)


def write_lines(folder, novels, size):
    long_text = next(gathered(paragraphs(novels, LONG_LINE), LONG_LINE - 2000))
    while len(line({"text": long_text}).encode()) > 32 << 20:
        long_text = long_text[:-100_000]
    documents = gathered(paragraphs(novels, size - LONG_LINE), 2000)
    with (folder / "lines.jsonl").open("w", encoding="utf-8", newline="") as lines, gzip.open(folder / "packed.jsonl.gz", "wt", compresslevel=1, encoding="utf-8", newline="") as packed:
        for number, document in enumerate(documents):
            for text in [long_text] * (number == 1000) + [document]:
                lines.write(line({"text": text}))
                packed.write(line({"text": text}))
    half = long_text[:len(long_text) // 2 - 1000]
    forms = [{"text": long_text}, {"prompt": half, "response": half}, {"messages": [{"role": "user", "content": half}, {"role": "assistant", "content": half}]}]
    with (folder / "long.jsonl").open("w", encoding="utf-8", newline="") as lines:
        for number in range(max(6, size // 8 // LONG_LINE)):
            lines.write(line(forms[number % len(forms)]))


def drop_pages(folder):
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Held(threading.Thread):
    """The most bytes of a group that the system could not take, looked at 50 times a second."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.files = (group / "memory.usage_in_bytes", "total_") if (group / "memory.usage_in_bytes").exists() else (group / "memory.current", "")
        self.stat, self.most, self.ended = group / "memory.stat", 0, threading.Event()

    def run(self):
        usage, prefix = self.files
        while not self.ended.wait(0.02):
            counters = dict(row.split() for row in self.stat.read_text().splitlines())
            self.most = max(self.most, int(usage.read_text()) - sum(int(counters[prefix + name]) for name in ("inactive_file", "active_file")))


def run(command, limit):
    """Seconds, the largest resident set of a process, what the group held, status, and output."""
    held = Held(limit.folder)
    held.start()
    start = time.monotonic()
    done = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=limit.enter, env=dict(os.environ, OMP_NUM_THREADS="1"))
    output = done.communicate()[0]
    seconds = time.monotonic() - start
    held.ended.set()
    held.join()
    return dict(seconds=seconds, held=held.most, status=done.returncode, output=output)


def peak_of(command, limit):
    """The same in a process of its own, whose children's largest resident set is then this command's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        row = run(command, limit)
        row["peak"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        with os.fdopen(writer, "w") as out:
            json.dump(row, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        row = json.load(found)
    os.waitpid(child, 0)
    return row


def megabytes(size):
    return f"{size / 1e6:.0f}"


def ended(row):
    if row["status"] == 0:
        return "done"
    print(row["output"][-2000:], file=sys.stderr)
    return f"status {row['status']}"


def tokenize(args, folder, limit):
    rows = []
    for name, kind in (("books.txt", "one text"), ("lines.jsonl", "JSON lines, one of 32 MB"), ("packed.jsonl.gz", "the same, .gz"), ("long.jsonl", "JSON lines of 32 MB")):
        for threads in args.threads:
            drop_pages(folder)
            out = folder / "tokens"
            row = peak_of([args.trireme, "data", "tokenize", folder / name, "--tokenizer", args.tokenizer, "--out", out, "--threads", threads, "--force", "--json"], limit)
            said = json.loads(row["output"].splitlines()[-1]) if row["status"] == 0 else {}
            size = said.get("text_bytes", 0)
            rows.append([kind, str(threads), megabytes((folder / name).stat().st_size), megabytes(size), megabytes(row["peak"]), megabytes(row["held"]), f"{row['seconds']:.0f}",
                         f"{size / 1e6 / row['seconds']:.1f}", ended(row)])
            print(rows[-1], file=sys.stderr, flush=True)
            shutil.rmtree(out, ignore_errors=True)
    print_table(["tokenized", "threads", "MB of the file", "MB of text", "peak MB", "held MB", "s", "MB/s", "end"], rows)


def train(args, folder, limit):
    """Shards and raw tokens of the same text, a byte each, so that they are twice the size of the text."""
    subprocess.run([args.trireme, "data", "tokenize", folder / "books.txt", "--tokenizer", "bytes", "--out", folder / "shards", "--json"], check=True, stdout=subprocess.DEVNULL)
    header = 128
    with (folder / "shards/tokens-00000.bin").open("rb") as shard, (folder / "raw.bin").open("wb") as raw:
        shard.seek(header)
        left = 2 * min((folder / "books.txt").stat().st_size, 1 << 30)
        while left > 0:
            raw.write(piece := shard.read(min(left, 1 << 24)))
            left -= len(piece)
    rows = []
    for name in ("shards", "raw.bin"):
        size = sum(file.stat().st_size for file in (folder / name).rglob("*.bin")) if (folder / name).is_dir() else (folder / name).stat().st_size
        config = {"model": {"type": "gpt", "layers": 2, "hidden": 64, "heads": 2, "sequence_length": SEQUENCE, "vocab_size": 256}, "data": {"type": "tokens", "train": name},
                  "training": {"steps": args.steps, "checkpoint_every": 0},
                  "engine": {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}}
        (folder / "run.json").write_text(json.dumps(config))
        for steps in (1, args.steps):
            drop_pages(folder)
            shutil.rmtree(folder / "out", ignore_errors=True)
            row = peak_of([args.trireme, "train", folder / "run.json", "-n", 2, "--out", folder / "out", "--set", f"training.steps={steps}"], limit)
            metrics = folder / "out/metrics.jsonl"
            losses = [json.loads(text)["loss"] for text in metrics.read_text().splitlines() if '"loss"' in text] if metrics.exists() else []
            rows.append([name, megabytes(size), str(steps), megabytes(row["peak"]), megabytes(row["held"]), f"{row['seconds']:.1f}", f"{losses[0]:.2f} to {losses[-1]:.2f}" if losses else "", ended(row)])
            print(rows[-1], file=sys.stderr, flush=True)
    print_table(["trained on", "MB", "steps", "peak MB of a rank", "held MB", "s", "loss", "end"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--novels", type=Path, default=ROOT / "data/austen")
    parser.add_argument("--tokenizer", default=ROOT / "data/smollm2")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--limit", type=float, default=1, help="GB of the control group")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["tokenize", "train"])
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[2, 16])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    limit = Limit()
    if limit.folder is None:
        print("this user may not make control groups", file=sys.stderr)
        return 2
    args.folder.mkdir(parents=True)
    try:
        limit.set(int(args.limit * 1e9))
        write_text(args.folder, args.novels, int(args.gigabytes * 1e9))
        if "tokenize" in args.parts:
            write_lines(args.folder, args.novels, int(args.gigabytes * 1e9))
        for part in args.parts:
            {"tokenize": tokenize, "train": train}[part](args, args.folder, limit)
    finally:
        shutil.rmtree(args.folder, ignore_errors=True)
        limit.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
