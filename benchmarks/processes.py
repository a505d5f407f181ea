"""Starts the processes of one engine, waits for all of them and measures them from outside; or runs one command. Standard library only."""
import ctypes
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time


class Failed(Exception):
    """A process ended badly or in time-out; the text is its last words."""


class Cut(Failed):
    """It had no more time."""


class Finished:
    """What a group of processes left: wall_s, other_cpu_pct (of the machine, by anybody else), stdout and stderr of each rank, clean exit or not."""

    def __init__(self, wall_s, other_cpu_pct, outputs, errors, clean):
        self.wall_s, self.other_cpu_pct, self.outputs, self.errors, self.clean = wall_s, other_cpu_pct, outputs, errors, clean


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environments(ranks):
    """What torchrun would set, without the time torchrun takes to start."""
    port = str(free_port())
    for rank in range(ranks):
        yield {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}


def busy_seconds():
    with open("/proc/stat") as stat:
        fields = [int(v) for v in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "terminate" in line]
    return (telling or lines or ["no output"])[-1][:300]


def run_together(command, environments, timeout_s, says_done):
    """Runs `command` once for each of `environments`. Raises Failed unless says_done(stdout) holds for each of them: a process that
    breaks only while it exits has measured all the same. Ends every process it started, however it is left."""
    processes, files = [], []
    busy, own, start = busy_seconds(), children_seconds(), time.monotonic()
    try:
        for environment in environments:
            out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
            files.append((out, err))
            processes.append(subprocess.Popen(command, env=dict(os.environ, **environment), stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                              start_new_session=True))
        bad_since = None
        while any(p.poll() is None for p in processes):
            now = time.monotonic()
            if bad_since is None and any(p.poll() not in (None, 0) for p in processes):
                bad_since = now
            if now - start > timeout_s or (bad_since and now - bad_since > 10):
                break
            time.sleep(0.003)
        wall = time.monotonic() - start
        stuck = any(p.poll() is None for p in processes)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    foreign = max(0.0, busy_seconds() - busy - (children_seconds() - own))
    texts = []
    for pair in files:
        for file in pair:
            file.seek(0)
            texts.append(file.read())
            file.close()
    outputs, errors = texts[0::2], texts[1::2]
    for process, output, error in zip(processes, outputs, errors):
        if not says_done(output):
            reason = f"no end after {wall:.0f} s" if stuck else f"exit status {process.returncode}"
            raise Failed(f"{reason}: {last_words(error or output)}")
    clean = not stuck and all(p.returncode == 0 for p in processes)
    return Finished(wall, 100 * foreign / max(wall, 1e-9) / os.cpu_count(), outputs, errors, clean)


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_command(command, timeout, log=None, line=None, environment=None, cwd=None):
    """The exit status. Output goes to the file `log`, or each line of stdout to line(text). The command and what it started end with this process,
    and after `timeout` seconds (Cut)."""
    process = subprocess.Popen([str(word) for word in command], stdout=log or subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=cwd,
                               start_new_session=True, preexec_fn=die_with_parent)
    cut = threading.Event()

    def end():
        try:
            os.killpg(process.pid, signal.SIGKILL)
            cut.set()
        except ProcessLookupError:
            pass  # it has just ended

    timer = threading.Timer(max(0.1, timeout), end)
    timer.start()
    try:
        if not log:
            for text in process.stdout:
                line(text.rstrip("\n"))
        status = process.wait()
    finally:
        timer.cancel()
    if cut.is_set():
        raise Cut(f"no end after {timeout:.0f} s")
    return status
