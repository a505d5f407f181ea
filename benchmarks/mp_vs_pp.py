"""`benchmarks/run mp-vs-pp`: BERT on the novels, naive model parallel against 1F1B, time a step and memory of every rank. Standard library only."""
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from chart import write_page
from engines import ROOT, TIMEOUT_S
from processes import Failed, run_together
from tables import Results, number, print_table
from turns import rotated

WARMUP = 5  # steps left out of the medians


def grid(stages):
    """(label, stages, schedule, micro-batches): model parallel passes the whole batch on, the pipeline a quarter of it at a time."""
    rows = []
    for count in stages:
        if count == 1:
            rows.append(("1 process", 1, "1f1b", 1))
        else:
            rows.append((f"MP, {count} stages", count, "naive", 1))
            rows.append((f"PP, {count} stages", count, "1f1b", None))
    return rows


def theory(stages, micro_batches):
    """How much faster 1F1B is than naive model parallel when all stages are equal and each has a core of its own."""
    return stages * micro_batches / (micro_batches + stages - 1)


def run_one(installed, args, stages, schedule, micro_batches, folder):
    out = folder / "row.json"
    out.unlink(missing_ok=True)
    command = [str(installed.trireme), "launch", "-n", str(stages), "--", str(installed.trireme.parent / "bert_pipeline"), "--stages", str(stages),
               "--schedule", schedule, "--batch", str(args.batch), "--micro-batches", str(micro_batches), "--steps", str(args.steps),
               "--layers", str(args.layers), "--hidden", str(args.hidden), "--length", str(args.length), "--text", str(args.text), "--json", str(out)]
    environment = {"OMP_NUM_THREADS": str(args.threads), "NO_COLOR": "1"}
    done = run_together(command, [environment], TIMEOUT_S, lambda _: out.exists())
    row = json.loads(out.read_text())
    warmup = min(WARMUP, len(row["step_ms"]) - 1)
    return dict(stages=stages, schedule=schedule, micro_batches=micro_batches, steps=len(row["step_ms"]), step_ms=round(statistics.median(row["step_ms"][warmup:]), 3),
                total_s=round(sum(row["step_ms"]) / 1e3, 2), peak_rss_mb=[round(b / 2**20, 1) for b in row["peak_rss_bytes"]],
                parameters=row["parameters"], loss_first=row["losses"][0], loss_last=row["losses"][-1], losses=row["losses"],
                other_cpu_pct=round(done.other_cpu_pct, 1))


def mp_vs_pp(installed, args, record):
    program = installed.trireme.parent / "bert_pipeline"
    if not program.exists():
        record(dict(benchmark="mp-vs-pp", engine="bert_pipeline", round=0, failed=f"{program} is not built: cmake --build --preset release --target bert_pipeline"))
        return
    rows = [(label, count, schedule, micro or args.micro_batches) for label, count, schedule, micro in grid(args.stages)]
    results = Results()
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-"))
    try:
        for n in range(args.rounds):
            for label, count, schedule, micro in rotated(rows, n):
                try:
                    row = run_one(installed, args, count, schedule, micro, folder)
                    record(dict(row, benchmark="mp-vs-pp", engine=label, round=n + 1))
                    said = f"{row['step_ms']:.1f} ms a step, {' '.join(number(mb, 0) for mb in row['peak_rss_mb'])} MB"
                except Failed as failure:
                    row, said = None, f"FAILED, {failure}"
                    record(dict(benchmark="mp-vs-pp", engine=label, round=n + 1, failed=str(failure)))
                results.add(label, n, row)
                print(f"mp-vs-pp {n + 1}/{args.rounds} {label}: {said}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    summary = summarize(results, rows, args)
    print_summary(summary, args)
    write_page(args.chart, summary, args, len(os.sched_getaffinity(0)))
    print(f"chart: {args.chart}")


def summarize(results, rows, args):
    """One entry per row of the grid that ran: medians over rounds."""
    out = []
    for label, count, schedule, micro in rows:
        ran = results.of(label)
        if not ran:
            continue
        ratios = results.pairs(lambda mp, pp: mp["step_ms"] / pp["step_ms"], f"MP, {count} stages", label) if schedule == "1f1b" and count > 1 else []
        out.append(dict(label=label, stages=count, schedule=schedule, micro_batches=micro, step_ms=statistics.median(r["step_ms"] for r in ran),
                        step_range=[min(r["step_ms"] for r in ran), max(r["step_ms"] for r in ran)],
                        peak_rss_mb=[statistics.median(values) for values in zip(*(r["peak_rss_mb"] for r in ran))],
                        speed_up=statistics.median(ratios) if ratios else None, theory=theory(count, micro) if ratios else None,
                        parameters=ran[0]["parameters"], losses=ran[-1]["losses"]))
    return out


def print_summary(summary, args):
    print(f"\n## BERT, {args.layers} layers, hidden {args.hidden}, {args.length} bytes; batch {args.batch}, {args.steps} steps\n")
    lines = []
    for row in summary:
        low, high = row["step_range"]
        gain = "" if row["speed_up"] is None else f"{row['speed_up']:.2f} of {row['theory']:.2f}"
        lines.append([row["label"], str(row["micro_batches"]), number(row["step_ms"]), f"{low:.1f}..{high:.1f}", gain,
                      " ".join(number(mb, 0) for mb in row["peak_rss_mb"]), f"{row['losses'][0]:.4f} {row['losses'][-1]:.4f}"])
    print_table(["", "micro-batches", "step ms", "over rounds", "faster than MP", "peak MB of each rank", "loss first, last"], lines)
    cores = len(os.sched_getaffinity(0))
    print("\"of\": what equal stages with a core each would gain, stages x micro-batches / (micro-batches + stages - 1).")
    if summary and max(row["stages"] for row in summary) * args.threads > cores:
        print(f"This machine has {cores} cores: more stages than that share them, and gain nothing by waiting less.")
