"""Rows of scripts/check_gpu, one JSON object a line. Python's standard library only."""
import json
import os
import threading
import time


class Rows:
    """Appends rows to a file, each of which is on the disk before the next begins. A file that was cut may end within a line, which is left out. Rows of other
    settings are not known; `own` has more of them by part."""

    def __init__(self, path, settings, **own):
        self.path, self.settings, self.own, self.lock = path, settings, own, threading.Lock()
        self.known = []
        torn = False
        if path.exists():
            text = path.read_bytes()
            torn = bool(text) and not text.endswith(b"\n")
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and row.get("settings") == self.settings_of(row.get("part")):
                    self.known.append(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a")
        if torn:
            self.file.write("\n")

    def settings_of(self, part):
        return self.settings + self.own.get(part, "")

    def add(self, part, unit, row):
        row = {"part": part, "unit": unit, **row, "time": round(time.time(), 3), "settings": self.settings_of(part)}
        with self.lock:
            self.known.append(row)
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())

    def finished(self, part):
        """The last row of each unit of the part that ended, as {unit: row}; those that failed have an "error"."""
        return {row["unit"]: row for row in self.known if row["part"] == part and row.get("complete")}
