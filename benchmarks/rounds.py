"""Runs engines in turns: what every comparison of training steps does. Standard library only."""
import os
import shutil
import sys
import tempfile
from pathlib import Path

from engines import run_engine
from processes import Failed
from tables import Results
from turns import rotated


def run_in_turns(installed, names, rounds, record, labels, make_spec, prepare=None, digits=2, add=lambda row, name, spec: None):
    """Runs every engine once a round, each time beginning with another one, so that what drifts hits all alike.
    `make_spec(name)` says what to run, `prepare`, a pair of an engine's name and a spec, runs before anything counts, `labels` go into
    every record ("benchmark", "size"), `add` may add to a row."""
    results = Results()
    folder = Path(tempfile.mkdtemp(prefix="trireme-benchmark-"))
    try:
        if prepare:  # DeepSpeed compiles parts of itself when it first runs: not what is measured here
            try:
                run_engine(installed, *prepare, folder)
            except Failed:
                pass  # the measured runs will say it
        for n in range(rounds):
            for name in rotated(names, n):
                spec = make_spec(name)
                try:
                    row = run_engine(installed, name, spec, folder)
                    add(row, name, spec)
                    said = f"{row['step_ms']:.{digits}f} ms a step, {row['process_s']:.1f} s"
                    said += "" if row["clean_exit"] else ", NOT A CLEAN EXIT (after its measurements)"
                    record(dict(row, benchmark=labels["benchmark"], round=n + 1))
                except Failed as failure:
                    row, said = None, f"FAILED, {failure}"
                    record(dict(labels, engine=name, round=n + 1, failed=str(failure)))
                results.add(name, n, row)
                print(f"{labels['size']} {n + 1}/{rounds} {name}: {said}", file=sys.stderr, flush=True)
                os.sync()  # what one engine wrote is not written back during the next one's steps
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results
