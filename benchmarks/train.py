"""`benchmarks/run train` and `start`: whole training steps, and whole processes for one step. Standard library only."""
from engines import ENGINES
from rounds import run_in_turns
from tables import apart, check, median_of, number, print_checks, print_table
from workloads import make_spec

START_ENGINES = ["raw", "trireme-1", "plain", "trireme-2", "ddp-2", "deepspeed-2"]


def measure(installed, names, size, rounds, threads, steps, warmup, record):
    deepspeed = next((name for name in names if ENGINES[name][0] == "deepspeed"), None)
    return run_in_turns(installed, names, rounds, record, dict(benchmark="train", size=size),
                        lambda name: make_spec(size, ENGINES[name][1], threads, steps, warmup),
                        deepspeed and (deepspeed, make_spec("nano", ENGINES[deepspeed][1], 1, steps=1, warmup=0)))


def print_engines(results, names):
    lines = []
    for name in names:
        rows = results.of(name)
        if not rows:
            lines.append([name] + ["failed"] + [""] * 9)
            continue
        step = [row["step_ms"] for row in rows]
        digits = 2 if min(step) < 100 else 0
        lines.append([
            name, f"{rows[0]['ranks']} x {rows[0]['threads']}", number(median_of(rows, "step_ms"), digits),
            f"{number(min(step), digits)}..{number(max(step), digits)}", number(median_of(rows, "wall_ms"), digits),
            number(median_of(rows, "tokens_per_s"), 0), number(median_of(rows, "peak_rss_mb"), 0), number(median_of(rows, "start_s"), 2),
            number(median_of(rows, "sent_bytes"), 2, 1e6) + ("*" if rows[0]["sent_is_formula"] and rows[0]["ranks"] > 1 else ""),
            f"{rows[-1]['loss_first']:.5f} {rows[-1]['loss_last']:.5f}", number(median_of(rows, "other_cpu_pct"), 0)])
    print_table(["engine", "ranks x threads", "step ms", "over rounds", "wall ms", "tokens/s", "peak MB a rank", "start s", "sent MB a rank",
                 "loss first, last", "other CPU %"], lines)


def step_ratio(results, ours, peer):
    return results.pairs(lambda a, b: a["step_ms"] / b["step_ms"], ours, peer)


def train_checks(results, size):
    checks = []
    if size == "nano":  # here a step is so short that what an engine adds to it can be seen
        ours = results.pairs(lambda a, b: a["step_ms"] - b["step_ms"], "trireme-1", "raw")
        ddp = results.pairs(lambda a, b: a["step_ms"] - b["step_ms"], "ddp-1", "plain")
        both = results.pairs(lambda a, b, c, d: a["step_ms"] - b["step_ms"] - (c["step_ms"] - d["step_ms"]), "trireme-1", "raw", "ddp-1", "plain")
        checks += [check("trireme-1 adds to raw, ms", ours, 0.48), check("ddp-1 adds to plain, ms", ddp, None), check("the first minus the second, ms", both, 0)]
    checks.append(check("trireme-1 / raw", step_ratio(results, "trireme-1", "raw"), None if size == "nano" else 1.0))
    for peer in ("raw-fused", "plain", "compile", "ddp-1", "deepspeed-1"):
        checks.append(check(f"trireme-1 / {peer}", step_ratio(results, "trireme-1", peer), None))
    for peer in ("ddp-2", "deepspeed-2"):
        checks.append(check(f"trireme-2 / {peer}", step_ratio(results, "trireme-2", peer), 1.0))
    for peer in ("parallel-2", "ddp-2"):
        checks.append(check(f"horovod-2 / {peer}", step_ratio(results, "horovod-2", peer), None))
    checks.append(check("parallel-2 / ddp-2", step_ratio(results, "parallel-2", "ddp-2"), None))
    checks.append(check("trireme-2 / trireme-2-gloo", step_ratio(results, "trireme-2", "trireme-2-gloo"), 1.0))
    if size == "nano":
        checks.append(check("trireme-2, ms", results.pairs(lambda row: row["step_ms"], "trireme-2"), 2.2))
    checks.append(check("compile / plain", step_ratio(results, "compile", "plain"), None))
    return checks


def print_agreement(results, names):
    """The engines trained the same model on the same batches: their losses must say so."""
    rows = [row for name in names for row in results.of(name)[:1] if row["same_batch"]]
    if len(rows) < 2:
        return
    print(f"Losses of {len(rows)} engines are within {apart(rows, 'loss_first'):.0e} of each other at the first step and {apart(rows, 'loss_last'):.0e} at the last (relative).")
    left_out = [name for name in names if results.of(name) and not results.of(name)[0]["same_batch"]]
    if left_out:
        print(f"Not compared: {', '.join(left_out)}, whose batch is larger, because one sample cannot be divided.")
    print(flush=True)


def train(installed, args, record):
    names = installed.usable(args.engines)
    for size in args.sizes:
        results = measure(installed, names, size, args.rounds, args.total_threads, args.steps, None, record)
        print(f"\n## {size}\n")
        print_engines(results, names)
        for row in print_checks([c for c in train_checks(results, size) if c[1] or set(args.engines) == set(ENGINES)]):
            record(dict(row, benchmark="train", size=size))
        print_agreement(results, names)
    print("wall ms: from the end of one step to the end of the next, with everything between. start s: the whole process without its steps after the first.")
    print("sent: a step; * is 2 (n-1)/n of the gradients' bytes, what a ring all-reduce sends: these engines do not count.")


def start(installed, args, record):
    names = installed.usable(args.engines)
    results = measure(installed, names, "tiny", args.rounds, args.total_threads, 1, 0, record)
    print("\n## One step of tiny, the whole process\n")
    lines = []
    for name in names:
        seconds = [row["process_s"] for row in results.of(name)]
        lines.append([name, number(median_of(results.of(name), "process_s"), 2)] + ([f"{min(seconds):.2f}..{max(seconds):.2f}"] if seconds else ["failed"]))
    print_table(["engine", "seconds", "over rounds"], lines)
    checks = [check(f"{name}, s", results.pairs(lambda row: row["process_s"], name), limit) for name, limit in (("trireme-1", 1.0), ("trireme-2", 1.5))]
    checks += [check(f"{a} / {b}", results.pairs(lambda x, y: x["process_s"] / y["process_s"], a, b), None)
               for a, b in (("trireme-1", "plain"), ("trireme-2", "ddp-2"), ("trireme-2", "deepspeed-2"))]
    for row in print_checks(checks):
        record(dict(row, benchmark="start"))
