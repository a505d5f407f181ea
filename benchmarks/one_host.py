"""Parameter servers beside all-reduce on one host, with as many servers as workers. Part of `benchmarks/run architectures`. Standard library only."""
import json
import os
import shutil
import statistics
import subprocess

from processes import Failed
from engines import TIMEOUT_S
from tables import number, print_table

MODELS = {"2 layers, hidden 64": dict(layers=2, hidden=64, heads=4, sequence_length=64), "4 layers, hidden 128": dict(layers=4, hidden=128, heads=4, sequence_length=128),
          "6 layers, hidden 256": dict(layers=6, hidden=256, heads=8, sequence_length=128)}
WORKERS = [2, 4]
STEPS = 60
WARMUP = 8
TARGET = 1.3  # a step with servers beside one without


def step_ms(installed, args, folder, model, workers, servers):
    run = {"model": {"type": "gpt", "vocab_size": 256, **model}, "data": {"type": "text", "train": [str(args.text)], "tokenizer": "bytes"}, "training": {"steps": STEPS, "seed": 1},
           "engine": {"train_batch_size": 4 * workers, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}}
    if servers:
        run["parallel"] = {"sync": {"kind": "server", "servers": servers, "mode": "sync"}}
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    (folder / "run.json").write_text(json.dumps(run))
    done = subprocess.run([str(installed.trireme), "train", str(folder / "run.json"), "-n", str(workers), "--out", str(out)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=dict(os.environ, OMP_NUM_THREADS="1", NO_COLOR="1"))
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}: {' '.join((done.stderr or done.stdout).strip().splitlines()[-2:])[:300]}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["step_ms"] for row in rows if "step_ms" in row and row["step"] > WARMUP)


def one_host(installed, args, record, folder):
    """Measures in turns, `args.rounds` times and at least 3, and prints medians and the range of the ratio."""
    found = {}
    for n in range(max(3, args.rounds)):
        for name, model in MODELS.items():
            for workers in WORKERS:
                try:
                    pair = [step_ms(installed, args, folder, model, workers, servers) for servers in (0, workers)]
                    found.setdefault((name, workers), []).append(pair)
                    record(dict(benchmark="one-host", model=name, workers=workers, servers=workers, round=n + 1, all_reduce_ms=pair[0], server_ms=pair[1]))
                except Failed as failure:
                    record(dict(benchmark="one-host", engine=name, size=workers, round=n + 1, failed=str(failure)))
    lines = []
    for (name, workers), pairs in found.items():
        ratios = sorted(server / plain for plain, server in pairs)
        lines.append([name, str(workers), number(statistics.median(plain for plain, _ in pairs), 1), number(statistics.median(server for _, server in pairs), 1),
                      f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})", "met" if statistics.median(ratios) <= TARGET else "MISSED"])
    print("\n## one host, as many servers as workers, sync\n")
    print_table(["model", "workers", "all-reduce ms", "servers ms", "ratio", f"at most {TARGET}"], lines)
