"""`benchmarks/run zero`: ZeRO's stages in fp32 and bf16 beside DDP, FSDP2 and DeepSpeed. Standard library only."""
import statistics

from engines import ZERO_ENGINES
from rounds import run_in_turns
from tables import apart, check, print_checks, print_table
from train import print_engines, step_ratio
from workloads import make_spec

# What an engine adds to a step can be seen on nano only. Below "small" no parameter reaches the 100,000 elements from which stage 3 shards,
# in Trireme and in DeepSpeed: there "all" shows what gathering costs. Engines that are not named here run on every size.
ONLY_ON = {name: ("nano",) for name in ("raw", "raw-fused", "trireme-1-z1", "trireme-1-z3", "trireme-1-z3-all", "deepspeed-1-z1", "deepspeed-1-z3")}
ONLY_ON["trireme-2-z3-all"] = ("nano", "tiny")
FP32_TOLERANCE, BF16_TOLERANCE = 1e-4, 1e-2  # relative, of a loss


def engines_of(size, names):
    return [name for name in names if size in ONLY_ON.get(name, (size,))]


def measure(installed, names, size, args, record):
    deepspeed = next((name for name in names if ZERO_ENGINES[name][0] == "deepspeed"), None)
    return run_in_turns(installed, names, args.rounds, record, dict(benchmark="zero", size=size),
                        lambda name: make_spec(size, ZERO_ENGINES[name][1], args.total_threads, args.steps),
                        deepspeed and (deepspeed, make_spec("nano", ZERO_ENGINES[deepspeed][1], 1, steps=1, warmup=0)))


def speed_checks(results, size):
    def ratio(ours, peer, limit, **how):
        return check(f"{ours} / {peer}", step_ratio(results, ours, peer), limit, **how)

    checks = []
    for dtype in ("", "-bf16"):
        ours, deepspeed, fsdp, ddp = f"trireme-2-z{{}}{dtype}", f"deepspeed-2-z{{}}{dtype}", f"fsdp-2{dtype}", f"ddp-2{dtype}"
        checks += [ratio(ours.format(stage), deepspeed.format(stage), 1.0 if stage else None) for stage in range(4)]
        checks.append(ratio(ours.format(3), fsdp, 1.0))
        if not dtype and size in ONLY_ON["trireme-2-z3-all"]:
            checks.append(ratio("trireme-2-z3-all", fsdp, 1.0))
        checks += [ratio(ours.format(stage), ours.format(0), 1.0, within_spread=True) for stage in (1, 2)]
        checks.append(ratio(ours.format(3), ours.format(0), 1.1 if size == "medium" else None))
        checks += [ratio(ours.format(0), ddp, None), ratio(fsdp, ddp, None), ratio(deepspeed.format(3), ddp, None)]
    checks += [ratio("trireme-2-z0", "trireme-2-z0-bf16", None), ratio("ddp-2", "ddp-2-bf16", None), ratio("trireme-1", "trireme-1-bf16", None)]
    checks.append(ratio("plain", "trireme-1", 1.10 if size == "small" else None, at_least=size == "small"))
    checks.append(ratio("plain-bf16", "trireme-1-bf16", 1.5 if size == "small" else None, at_least=size == "small"))
    checks.append(ratio("plain-autocast-bf16", "trireme-1-bf16", None))
    return checks


def overhead_checks(results):
    def added(ours, loop, limit):
        return check(f"{ours} adds to {loop}, ms", results.pairs(lambda a, b: a["step_ms"] - b["step_ms"], ours, loop), limit)
    checks = [added("trireme-1-z1", "raw", 0.5), added("trireme-1-z3", "raw", 1.5), added("trireme-1-z3-all", "raw", 1.5)]
    checks += [added(f"trireme-1-z{stage}", "raw-fused", None) for stage in (1, 3)]
    return checks + [added(f"deepspeed-1-z{stage}", "plain", None) for stage in (1, 3)]


def memory_checks(results, size):
    def peak(name, limit=None):
        return check(f"peak of {name}, MB", results.pairs(lambda row: row["peak_rss_mb"], name), limit)

    def ratio(ours, peer):
        return check(f"peak of {ours} / {peer}", results.pairs(lambda a, b: a["peak_rss_mb"] / b["peak_rss_mb"], ours, peer), None)
    checks = [peak("trireme-2-z3", 1800 if size == "medium" else None)]
    return checks + [ratio("trireme-2-z3", peer) for peer in ("trireme-2-z0", "fsdp-2", "fsdp-2-malloc", "deepspeed-2-z3")]


def loss_groups(results, names):
    """Names by what they trained on: where one sample cannot be divided two ranks have a batch twice as large."""
    groups = {}
    for name in names:
        for row in results.of(name)[:1]:
            groups.setdefault(row["same_batch"], []).append(name)
    return groups.values()


def agreement_checks(results, names):
    """The engines trained the same model on the same batches: their losses must say so."""
    checks = []
    for group in loss_groups(results, names):
        rows = {name: results.of(name)[0] for name in group}
        exact = [row for row in rows.values() if row["dtype"] == "fp32"]
        if len(exact) > 1:
            checks += [(f"{len(exact)} fp32 engines, {when} loss", apart(exact, f"loss_{when}"), FP32_TOLERANCE) for when in ("first", "last")]
        masters = [name for name in group if rows[name]["dtype"] == "bf16" and name != "plain-bf16"]
        for label, some, limit in ((f"{len(masters)} bf16 engines from fp32", masters, BF16_TOLERANCE),
                                   ("plain-bf16 (no fp32 masters) from fp32", ["plain-bf16"], None)):
            some = [rows[name] for name in some if name in rows]
            if some and exact:
                for when in ("first", "last"):
                    middle = statistics.median(row[f"loss_{when}"] for row in exact)
                    checks.append((f"{label}, {when} loss", max(abs(row[f"loss_{when}"] - middle) / middle for row in some), limit))
    return checks


def print_agreement(results, names):
    rows = []
    for label, value, limit in agreement_checks(results, names):
        held = None if limit is None else value <= limit
        rows.append(dict(check=label, value=value, target=limit, held=held))
    if rows:
        print_table(["losses, farthest apart (relative)", "", "target", ""],
                    [[row["check"], f"{row['value']:.0e}", "" if row["target"] is None else f"<= {row['target']:.0e}",
                      "" if row["held"] is None else "held" if row["held"] else "MISSED"] for row in rows])
    return rows


def zero(installed, args, record):
    chosen = installed.usable(args.engines)
    for size in args.sizes:
        names = engines_of(size, chosen)
        if not names:
            print(f"\n## {size}\n\nNone of these engines runs on this size: " + "; ".join(f"{name} is for {' and '.join(ONLY_ON[name])}" for name in chosen))
            continue
        results = measure(installed, names, size, args, record)
        print(f"\n## {size}\n")
        print_engines(results, names)
        checks = speed_checks(results, size) + (overhead_checks(results) if size == "nano" else []) + memory_checks(results, size)
        rows = print_checks([c for c in checks if c[1] or set(args.engines) == set(ZERO_ENGINES)])
        for row in rows + print_agreement(results, names):
            record(dict(row, benchmark="zero", size=size))
    print("wall ms: from the end of one step to the end of the next, with everything between. start s: the whole process without its steps after the first.")
    print("sent: a step, counted; * is 2 (n-1)/n of the gradients' bytes, what a ring all-reduce sends; -: the engine does not count.")
