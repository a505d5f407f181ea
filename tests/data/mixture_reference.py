"""Writes the numbers that mixture_test.cpp expects of MixtureOrder, from the definition of Megatron-LM's blended dataset: sample n is of
the set with the largest weight * max(n, 1) - samples so far.

Run: python3 mixture_reference.py
"""
import zlib


def choices(weights, samples):
    shares = [weight / sum(weights) for weight in weights]
    counts = [0] * len(weights)
    for n in range(samples):
        lacks = [share * max(float(n), 1.0) - float(count) for share, count in zip(shares, counts)]
        chosen = lacks.index(max(lacks))
        counts[chosen] += 1
        yield chosen


for weights in ([0.7, 0.3], [1, 1], [0.7, 0.2, 0.1], [3, 1, 4, 1, 5, 9, 2, 6], [1000, 1, 0.001], [5]):
    made = bytes(choices(weights, 150_000))
    print(f"{weights}: begins {list(made[:12])}, counts {[made.count(i) for i in range(len(weights))]}, crc32 {zlib.crc32(made):#x}")
