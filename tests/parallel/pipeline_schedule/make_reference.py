"""Writes deepspeed_reference.json: the instruction streams of DeepSpeed's pipeline schedules.

Run with a Python that has DeepSpeed 0.19.8, in this folder:
    python make_reference.py

One letter an instruction, the buffer's number after it: L load, F forward, B backward, A a send and receive of
an activation, G g of a gradient; T O R the three that end a step (tied gradients, gradients, optimizer).
"""
import json
import pathlib

import deepspeed
from deepspeed.runtime.pipe import schedule

LETTERS = {
    "LoadMicroBatch": "L",
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": "A",
    "RecvActivation": "a",
    "SendGrad": "G",
    "RecvGrad": "g",
    "ReduceTiedGrads": "T",
    "ReduceGrads": "R",
    "OptimizerStep": "O",
}


def encode(steps):
    return "".join(LETTERS[i.name] + str(getattr(i, "buffer_id", "")) for step in steps for i in step)


def table(kind):
    return {
        f"{stages},{micro_batches}": [encode(kind(micro_batches, stages, stage)) for stage in range(stages)]
        for stages in range(1, 7)
        for micro_batches in range(1, 13)
    }


reference = {
    "deepspeed": deepspeed.__version__,
    "train": table(schedule.TrainSchedule),
    "inference": table(schedule.InferenceSchedule),
}
out = pathlib.Path(__file__).parent / "deepspeed_reference.json"
out.write_text(json.dumps(reference, indent=0) + "\n")
