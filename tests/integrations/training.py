"""A folder with a tiny data set and a run file on it, and the trainings in it."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

BINARIES = os.environ.get("TRIREME_BINARIES", "build/release/bin")


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class TrainingCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme_integration_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Counting with strides: something a model learns in a few steps.
        tokens = [(i * (1 + i // 600)) % 50 for i in range(6000)]
        self.write("tokens.bin", struct.pack(f"{len(tokens)}H", *tokens))
        self.write("run.json", json.dumps({
            "model": {"type": "gpt", "layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50},
            "data": {"type": "tokens", "train": ["tokens.bin"], "shuffle": True},
            "training": {"steps": 30, "checkpoint_every": 5},
            "engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}}))
        self.trireme = os.path.join(BINARIES, "trireme")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content, mode=0o600):
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def text(self, *names):
        try:
            with open(self.path(*names), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def environment(self):
        return {**os.environ, "OMP_NUM_THREADS": "1", "TRIREME_DEVICE": "cpu", "NO_COLOR": "1"}

    def train(self, *arguments, out="out", seconds=120, environment=None):
        """trireme train to its end: the exit status, and all that it wrote."""
        done = subprocess.run([self.trireme, "train", self.path("run.json"), "--out", self.path(out), *arguments], env=environment or self.environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, cwd=self.folder)
        return done.returncode, done.stdout

    def steps(self, out="out"):
        """What metrics.jsonl says of each step."""
        return [json.loads(line) for line in self.text(out, "metrics.jsonl").splitlines() if line.endswith("}")]

    def losses(self, out="out"):
        return [(step["step"], step["loss"]) for step in self.steps(out)]

    def tensor_bytes(self, out, ranks, step=30):
        """Of the last checkpoint; the headers differ by the identity of the save."""
        values = b""
        for rank in range(ranks):
            with open(self.path(out, "checkpoints", f"global_step{step}", f"rank{rank:05}.safetensors"), "rb") as file:
                content = file.read()
            values += content[8 + struct.unpack("<Q", content[:8])[0]:]
        self.assertGreater(len(values), 50_000)
        return values
