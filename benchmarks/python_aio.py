"""DeepSpeed's part of `benchmarks/run offload`: python_aio.py FILE BYTES BLOCK_SIZE QUEUE_DEPTH THREADS writes and reads a file that is there through its AIO handle, in
pieces of 1 GiB, and prints one line of JSON."""
import json
import sys
import time

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

PIECE = 1 << 30  # it waits after each


def main():
    file, total, block, depth, threads = sys.argv[1], *map(int, sys.argv[2:6])
    handle = AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, False, True, threads)  # single_submit, overlap_events: its defaults
    size = min(PIECE, total)
    piece = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
    piece.random_(0, 256)
    row = {}
    for name, call in (("write", handle.sync_pwrite), ("read", handle.sync_pread)):
        start = time.perf_counter()
        for offset in range(0, total // size * size, size):
            if call(piece, file, offset) < 0:
                sys.exit(f"{name} at {offset} failed")
        row[f"{name}_gb_per_s"] = total // size * size / (time.perf_counter() - start) / 1e9
    handle.free_cpu_locked_tensor(piece)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
