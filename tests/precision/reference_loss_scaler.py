"""Writes reference_loss_scaler.json: what the documented rule of dynamic loss scaling makes of 5,000 random overflow patterns.

    python reference_loss_scaler.py > reference_loss_scaler.json
    python reference_loss_scaler.py --show K        the steps of pattern K
    python reference_loss_scaler.py --deepspeed     the same patterns through an installed DeepSpeed

The rule is written out below from DeepSpeed's documentation (fp16 section of the configuration page) and the tutorial on mixed
precision, not from this project's code. A pattern is its number: options and overflows come from a generator that the test repeats.
A digest covers the scale and the hysteresis after each step and whether the step asked for less than the minimum.
"""
import json
import struct
import sys

PATTERNS = 5000
MASK = 2**64 - 1


class Random:
    """splitmix64"""

    def __init__(self, seed):
        self.state = seed

    def next(self, below):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % below


def pattern(number):
    random = Random(number)
    options = {
        "power": random.next(25),
        "window": [1, 2, 3, 5, 10, 50, 100][random.next(7)],
        "hysteresis": 1 + random.next(4),
        "consecutive": random.next(2) == 1,
    }
    options["minimum"] = min([0.25, 1.0, 2.0, 5.0][random.next(4)], 2.0**options["power"])
    chance = [0, 10, 50, 200, 500, 900][random.next(6)]  # of a thousand
    burst = [0, 300, 800][random.next(3)]  # that an overflow is followed by another
    overflows = []
    for _ in range(100 if options["window"] == 1 else 200):
        draw = random.next(1000)
        overflows.append(draw < (burst if overflows and overflows[-1] else chance))
    return options, overflows


def documented(options, overflows):
    """Yields (scale, hysteresis left, asked for less than the minimum) after each step."""
    scale, left, good = 2.0**options["power"], options["hysteresis"], -1
    # good: steps without overflow since the last one; the first of them is not counted.
    for overflow in overflows:
        too_low = False
        if overflow:
            good = -1
            if left == 1:
                too_low = scale == options["minimum"]
                scale = max(scale / 2, options["minimum"])
            else:
                left -= 1
        else:
            good += 1
            if options["consecutive"]:
                left = options["hysteresis"]
            if good > 0 and good % options["window"] == 0:
                scale *= 2
                left = options["hysteresis"]
        yield scale, left, too_low


def deepspeed(options, overflows):
    from deepspeed.runtime.fp16 import loss_scaler

    loss_scaler.dist.get_rank = lambda: 1  # the messages are rank 0's
    scaler = loss_scaler.DynamicLossScaler(
        2.0**options["power"], options["window"], options["minimum"], options["hysteresis"], options["consecutive"]
    )
    for overflow in overflows:
        too_low = False
        try:
            scaler.update_scale(overflow)
        except Exception:  # at the minimum; go on as with raise_error_at_min_scale=False
            too_low = True
            scaler.raise_error_at_min_scale = False
            scaler.update_scale(overflow)
            scaler.raise_error_at_min_scale = True
        yield scaler.cur_scale, scaler.cur_hysteresis, too_low


def digest(steps):
    h = 0xCBF29CE484222325
    for scale, left, too_low in steps:
        word = struct.unpack("<Q", struct.pack("<d", scale))[0] ^ (left << 1 | too_low)
        h = ((h ^ word) * 0x100000001B3) & MASK
        h ^= h >> 29
    return "%08x" % (h >> 32)


if sys.argv[1:2] == ["--show"]:
    options, overflows = pattern(int(sys.argv[2]))
    print(options)
    for step, (overflow, after) in enumerate(zip(overflows, documented(options, overflows))):
        print(step, "overflow" if overflow else "", *after)
elif sys.argv[1:2] == ["--deepspeed"]:
    wrong = [k for k in range(PATTERNS) if list(deepspeed(*pattern(k))) != list(documented(*pattern(k)))]
    print(f"{PATTERNS - len(wrong)} of {PATTERNS} patterns equal", wrong[:10])
else:
    digests = [digest(documented(*pattern(k))) for k in range(PATTERNS)]
    print('{"patterns": %d, "digests": [' % PATTERNS)
    lines = [", ".join('"%s"' % d for d in digests[i : i + 12]) for i in range(0, PATTERNS, 12)]
    print(",\n".join(lines) + "\n]}")
