"""Runs programs in turns of seconds: what disturbs the machine for a while disturbs all of them alike. Standard library only."""
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

POLL_S = 0.01


def rotated(items, n):
    """The list beginning with its n-th item, from the first again after the last: each comes first in some round."""
    first = n % max(1, len(items))
    return items[first:] + items[:first]


def parents():
    """Of every process that lives: {process: its parent}."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it has just ended
                pass
    return found


def signal_all(root, number):
    """Sends a signal to a process and all that descend from it, parents first."""
    above = parents()
    family = [root]
    for process in family:
        family.extend(child for child, parent in above.items() if parent == process)
    for process in family:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


class Member:
    """A program that runs in its turns only."""

    def __init__(self, command):
        self.command = command
        self.process = None
        self.pauses = []  # (begin, end) by time.time()
        self.output = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")

    def run_for(self, seconds):
        """One turn, which ends early if the program does. Returns whether it has ended."""
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdout=self.output, stderr=self.errors, text=True)
        else:
            signal_all(self.process.pid, signal.SIGCONT)
            self.pauses[-1] = (self.pauses[-1][0], time.time())
        until = time.time() + seconds
        while time.time() < until:
            if self.process.poll() is not None:
                return True
            time.sleep(POLL_S)
        self.pauses.append((time.time(), float("inf")))
        signal_all(self.process.pid, signal.SIGSTOP)
        return False

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            signal_all(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def was_running(self, begin, end):
        """Whether no pause fell between these two times."""
        return all(end <= first or last <= begin for first, last in self.pauses)

    def text(self, file):
        file.seek(0)
        return file.read()


def run_alternately(commands, seconds, timeout_s):
    """Members by name when all have ended, of commands and lengths of turns by name. All are in memory together."""
    members = {name: Member(command) for name, command in commands.items()}
    left = dict(members)
    until = time.time() + timeout_s
    try:
        while left:
            for name, member in list(left.items()):
                if member.run_for(seconds[name]):
                    del left[name]
            if time.time() > until:
                raise RuntimeError(f"still running after {timeout_s} s: {', '.join(map(str, left))}")
    finally:
        for member in left.values():
            member.kill()
    return members
