"""`benchmarks/run pipeline`: two pipeline stages beside torch's and DeepSpeed's, and the plain loop on one thread. Standard library only."""
import statistics

from engines import PIPELINE_ENGINES
from rounds import run_in_turns
from tables import apart, check, median_of, number, print_checks, print_table
from workloads import make_pipeline_spec

STAGES = 2
CHUNKS = {"interleaved": 2}
TARGET_EFFICIENCY = 0.96
OURS = [name for name in PIPELINE_ENGINES if name.startswith("trireme-")]
PEERS = [name for name in PIPELINE_ENGINES if name.startswith(("torch-", "deepspeed-"))]


def bubble(name, stages, micro_batches):
    """Idle share of a schedule when all stages are equal and a backward takes two forwards; zero-bubble splits it into 1 + 1."""
    schedule = name.partition("-")[2]
    work = {"t1": None, "1f1b": micro_batches, "interleaved": CHUNKS["interleaved"] * micro_batches, "zero-bubble": 3 * micro_batches}[schedule]
    return 0.0 if work is None else (stages - 1) / (work + stages - 1)


def measure(installed, names, size, args, record):
    deepspeed = next((name for name in names if PIPELINE_ENGINES[name][0] == "deepspeed"), None)

    def add(row, name, spec):
        row.update(processes=PIPELINE_ENGINES[name][1], bubble=round(bubble(name, STAGES, spec["accumulate"]), 4))
    return run_in_turns(installed, names, args.rounds, record, dict(benchmark="pipeline", size=size),
                        lambda name: make_pipeline_spec(size, STAGES, args.steps, partition=args.partition),
                        deepspeed and (deepspeed, make_pipeline_spec("tiny", STAGES, steps=1, warmup=0)), digits=1, add=add)


def efficiency(results, name):
    """The plain loop's time on one thread over what the pipeline's stages were given to work in, round by round."""
    return results.pairs(lambda one, row: one["step_ms"] / (STAGES * row["step_ms"] * (1 - row["bubble"])), "plain-t1", name)


def step_ratio(results, ours, peer):
    return results.pairs(lambda a, b: a["step_ms"] / b["step_ms"], ours, peer)


def best_of(results, names):
    ran = [name for name in names if results.of(name)]
    return min(ran, key=lambda name: median_of(results.of(name), "step_ms"), default=None)


def print_engines(results, names):
    lines = []
    for name in names:
        rows = results.of(name)
        if not rows:
            lines.append([name, "failed"] + [""] * 8)
            continue
        step = [row["step_ms"] for row in rows]
        digits = 1 if min(step) < 1000 else 0
        reached = efficiency(results, name) if rows[0]["processes"] > 1 else []
        lines.append([name, str(rows[0]["processes"]), number(median_of(rows, "step_ms"), digits), f"{number(min(step), digits)}..{number(max(step), digits)}",
                      number(median_of(rows, "wall_ms"), digits), number(median_of(rows, "tokens_per_s"), 0), number(100 * rows[0]["bubble"]),
                      number(statistics.median(reached) if reached else None, 3), number(median_of(rows, "peak_rss_mb"), 0),
                      f"{rows[-1]['loss_first']:.5f} {rows[-1]['loss_last']:.5f}", number(median_of(rows, "other_cpu_pct"), 0)])
    print_table(["engine", "processes", "step ms", "over rounds", "wall ms", "tokens/s", "bubble %", "efficiency", "peak MB a rank", "loss first, last",
                 "other CPU %"], lines)


def checks(results):
    lines = []
    ours, peers = best_of(results, OURS), best_of(results, PEERS)
    if ours and peers:
        lines.append(check(f"best of each: {ours} / {peers}", step_ratio(results, ours, peers), 1.0))
    for name in OURS:
        for peer in PEERS:
            lines.append(check(f"{name} / {peer}", step_ratio(results, name, peer), None))
    for name in OURS + PEERS:
        missing = [1 - value for value in efficiency(results, name)]
        lines.append(check(f"{name}, what is missing to efficiency 1", missing, round(1 - TARGET_EFFICIENCY, 3) if name == "trireme-1f1b" else None))
    return lines


def print_agreement(results, names):
    """The engines trained the same model on the same batches: their losses must say so."""
    rows = [row for name in names for row in results.of(name)[:1]]
    if len(rows) < 2:
        return
    print(f"Losses of {len(rows)} engines are within {apart(rows, 'loss_first'):.0e} of each other at the first step and {apart(rows, 'loss_last'):.0e} at the last (relative).\n")


def pipeline(installed, args, record):
    names = installed.usable(args.engines)
    for size in args.sizes:
        spec = make_pipeline_spec(size, STAGES, args.steps)
        results = measure(installed, names, size, args, record)
        print(f"\n## {size}: {STAGES} stages, {spec['accumulate']} micro-batches of {spec['micro']}, untied head\n")
        print_engines(results, names)
        for row in print_checks([c for c in checks(results) if c[1] or set(args.engines) == set(PIPELINE_ENGINES)]):
            record(dict(row, benchmark="pipeline", size=size))
        print_agreement(results, names)
    print("bubble: by formula, for equal stages. efficiency: T1 / (stages * step * (1 - bubble)), where T1 is plain-t1, the same work in one process on one thread.")
    print("Stages are never quite equal: what the longer one has more counts against the engine.")
