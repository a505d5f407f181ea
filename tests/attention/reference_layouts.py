"""Builds block-sparse layouts as docs/sparse_attention.md describes them, cell by cell.

Reads a case a line, JSON: the keys of "sparse_attention", heads and blocks. Prints for each head and row a line of 0, 1
and ?: ? where a random block may be. A line "-" ends a case.
"""

import json
import sys


def window(case, row, column):
    """Whether row and column are in one window."""
    sizes = [case["num_local_blocks"]] if case["mode"] == "fixed" else case["local_window_blocks"]
    begin, number = 0, 0
    while True:
        end = begin + sizes[min(number, len(sizes) - 1)]
        if row < end:
            return begin <= column < end
        begin, number = end, number + 1


def slides(case, row, column):
    return abs(row - column) <= case["num_sliding_window_blocks"] // 2


def is_global(case, head, block):
    n, mode = case["blocks"], case["mode"]
    if mode == "bigbird":
        return block < case["num_global_blocks"]
    if mode in ("variable", "bslongformer"):
        begins = case["global_block_indices"]
        ends = case["global_block_end_indices"] or [begin + 1 for begin in begins]
        return any(begin <= block < end for begin, end in zip(begins, ends))
    if mode != "fixed":
        return False
    size, count = case["num_local_blocks"], case["num_global_blocks"]
    first = block // size * size
    at = first + size - (1 + head % case["num_different_global_patterns"]) * count
    if first + size > n:  # the last window is short
        at = max(0, min(at, n - count))
        if block < at and at < first:
            return False
        return at <= block < at + count
    if at <= block < at + count:
        return True
    # The group of a short last window may begin in the window before.
    short = n // size * size
    if short < n:
        at = max(0, min(short + size - (1 + head % case["num_different_global_patterns"]) * count, n - count))
        return at <= block < at + count
    return False


def cell(case, head, row, column):
    mode, causal = case["mode"], case["attention"] == "unidirectional"
    if causal and column > row:
        return "0"
    if row == column or mode == "dense":
        return "1"
    if mode in ("fixed", "variable") and window(case, row, column):
        return "1"
    if mode in ("bigbird", "bslongformer", "window") and slides(case, row, column):
        return "1"
    if is_global(case, head, column):
        return "1"
    rows = mode in ("bigbird", "bslongformer") or case["horizontal_global_attention"]
    if rows and is_global(case, head, row):
        return "1"
    return "?" if mode in ("bigbird", "variable") and case["num_random_blocks"] else "0"


for line in sys.stdin:
    case = json.loads(line)
    for head in range(case["heads"]):
        pattern = head if case["different_layout_per_head"] else 0
        for row in range(case["blocks"]):
            print("".join(cell(case, pattern, row, column) for column in range(case["blocks"])))
    print("-", flush=True)
