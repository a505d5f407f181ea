"""trireme train --hostfile through OpenSSH's own server and client, on the loopback interface: hosts are 127.0.0.2 and 127.0.0.3.

The server has its own configuration, keys and port in the test's folder, and ~/.ssh is neither read nor written: an `ssh` that stands first
in PATH is the real one with -F."""
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import unittest

import report
from training import TrainingCase, eventually

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])


def free_port():
    """Below those that the kernel gives to connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def processes():
    """pid: (parent, state, command line) of all that can be read."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                found[int(pid)] = (int(parent), state, file.read().replace("\0", " "))
        except OSError:
            pass
    return found


@unittest.skipUnless(SSHD and shutil.which("ssh") and shutil.which("ssh-keygen"), "OpenSSH's server is not installed (Debian: openssh-server)")
class SshdTest(TrainingCase):
    def setUp(self):
        super().setUp()
        # The path has what a shell takes apart, and shows whose processes are left.
        os.mkdir(self.path("it's here"))
        for program in ("trireme", "trireme-rank"):
            shutil.copy2(os.path.join(os.path.dirname(self.trireme), program), self.path("it's here", program))
        self.trireme = self.path("it's here", "trireme")
        self.port = free_port()
        for key in ("host_key", "user_key", "strange_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", self.path(key)], check=True)
        self.authorize("user_key")
        hosts = ["127.0.0.2", "127.0.0.3"]
        self.write("known_hosts", "".join(f"[{host}]:{self.port} {self.text('host_key.pub')}" for host in hosts))
        self.write("sshd_config", f"""
Port {self.port}
{''.join(f"ListenAddress {host}{os.linesep}" for host in hosts)}HostKey {self.path("host_key")}
AuthorizedKeysFile {self.path("authorized_keys")}
AllowUsers {pwd.getpwuid(os.getuid()).pw_name}
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
# The folder is below /tmp, where everybody may write.
StrictModes no
MaxStartups 100
PrintMotd no
""")
        self.write("ssh_config", f"""
Host node2
  HostName 127.0.0.2
Host node3
  HostName 127.0.0.3
Host *
  Port {self.port}
  IdentityFile {self.path("user_key")}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {self.path("known_hosts")}
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
""")
        self.write("hosts", "node2 slots=1 address=127.0.0.2\nnode3 slots=1 address=127.0.0.3\n")
        os.mkdir(self.path("bin"))
        self.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.path("ssh_config")} "$@"\n', 0o700)
        self.sshd = None
        self.addCleanup(self.nothing_is_left)
        self.start_sshd()

    def environment(self):
        return {**super().environment(), "PATH": self.path("bin") + ":" + os.environ["PATH"]}

    def authorize(self, key, options=""):
        self.write("authorized_keys", (options + " " if options else "") + self.text(key + ".pub"))

    def start_sshd(self):
        if os.getuid() == 0:
            os.makedirs("/run/sshd", 0o755, exist_ok=True)  # where it leaves its rights; the service makes it otherwise
        with open(self.path("sshd.log"), "a") as log:
            self.sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", self.path("sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.assertTrue(eventually(lambda: self.sshd.poll() is not None or self.text("sshd.log").count("listening on") >= 2))
        self.assertIsNone(self.sshd.poll(), self.text("sshd.log"))

    def stop_sshd(self):
        """The server and its sessions."""
        for pid in self.descendants(self.sshd.pid) + [self.sshd.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.sshd.wait()

    @staticmethod
    def descendants(pid):
        everything, found = processes(), []
        below = [pid]
        while below:
            below = [child for child, (parent, state, _) in everything.items() if parent in below and state != "Z"]
            found += below
        return found

    def ours(self, *words):
        """Running processes with the folder in their command line, and these words."""
        return [pid for pid, (_, state, line) in processes().items()
                if self.folder + "/" in line and all(word in line for word in words) and state not in "ZX" and pid != self.sshd.pid]

    def nothing_is_left(self):
        try:
            gone = eventually(lambda: not self.ours() and not self.descendants(self.sshd.pid), 30)
            self.assertTrue(gone, [processes().get(pid) for pid in self.ours() + self.descendants(self.sshd.pid)])
        finally:
            for pid in self.ours():
                os.kill(pid, signal.SIGKILL)
            self.stop_sshd()

    def begin(self, *arguments, out="out"):
        """As from a terminal: launcher and what it starts have a process group of their own."""
        log = open(self.path("begun.log"), "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([self.trireme, "train", self.path("run.json"), "--out", self.path(out), "--hostfile", self.path("hosts"), *arguments],
                                   env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def test_two_hosts_are_two_local_ranks(self):
        status, said = self.train("-n", "2", out="local")
        self.assertEqual(status, 0, said)
        status, said = self.train("--hostfile", self.path("hosts"))
        self.assertEqual(status, 0, said + self.text("sshd.log"))
        self.assertEqual(self.losses(), self.losses("local"))
        self.assertEqual(self.tensor_bytes("out", 2), self.tensor_bytes("local", 2))
        log = self.text("sshd.log")
        self.assertEqual(log.count("Accepted publickey"), 2, log)

    def test_rsh_with_options(self):
        """As docs/launching.md has it: --rsh "ssh -p 2222"."""
        plain = {**self.environment(), "PATH": os.environ["PATH"]}
        status, said = self.train("--hostfile", self.path("hosts"), "--rsh", f"ssh -F {self.path('ssh_config')} -T", environment=plain)
        self.assertEqual(status, 0, said + self.text("sshd.log"))
        self.assertEqual(self.losses()[-1][0], 30)

    def test_this_machine_needs_no_ssh(self):
        self.write("hosts", "localhost slots=1\nnode3 slots=1 address=127.0.0.3\n")
        status, said = self.train("--hostfile", self.path("hosts"))
        self.assertEqual(status, 0, said)
        self.assertEqual(self.text("sshd.log").count("Accepted publickey"), 1)

    def test_a_login_that_talks(self):
        self.authorize("user_key", f"""command="echo 'Welcome to the cluster'; echo 'quota: 3 % left' >&2; eval \\"exec $SSH_ORIGINAL_COMMAND\\"" """.strip())
        status, said = self.train("--hostfile", self.path("hosts"))
        self.assertEqual(status, 0, said + self.text("sshd.log"))
        self.assertEqual(self.losses()[-1][0], 30)

    def refused(self, host, code, words):
        """The host that failed first is named, whichever of the two it is."""
        status, said = self.train("--hostfile", self.path("hosts"))
        self.assertEqual(status, 1, said)
        self.assertRegex(said, rf"host {host} is lost: it cannot be reached: ssh ended with exit code {code}: .*{words}")
        self.assertEqual(self.losses(), [])

    def test_a_key_that_is_refused(self):
        self.authorize("strange_key")
        self.refused("node[23]", 255, r"Permission denied \(publickey\)")

    def test_a_host_key_that_has_changed(self):
        known = self.text("known_hosts").splitlines()
        self.write("known_hosts", known[0] + "\n" + known[1].split()[0] + " " + self.text("strange_key.pub"))
        self.refused("node3", 255, "Host key verification failed")

    def test_a_server_that_is_down(self):
        self.stop_sshd()
        self.refused("node[23]", 255, "Connection refused")

    def test_a_host_without_trireme(self):
        self.authorize("user_key", 'command="exec /nowhere/trireme agent"')
        self.refused("node[23]", "12[67]", "/nowhere/trireme")

    def test_a_session_that_is_killed(self):
        job = self.begin("--set", "training.steps=1000000")
        self.assertTrue(eventually(lambda: len(self.losses()) > 20), self.text("begun.log"))
        ranks = self.ours("trireme-rank")
        self.assertEqual(len(ranks), 2)
        self.stop_sshd()
        self.assertEqual(job.wait(60), 1)
        self.assertRegex(self.text("begun.log"), r"host node[23] \(rank [01]\) is lost: the connection to its agent ended: ssh ended with exit code 255: ")
        self.assertTrue(eventually(lambda: not self.ours("trireme-rank"), 30))
        self.start_sshd()

    def test_a_session_that_is_killed_is_begun_again(self):
        self.write("run.json", self.text("run.json").replace('"steps": 30', '"steps": 400').replace('"checkpoint_every": 5', '"checkpoint_every": 50'))
        status, said = self.train("-n", "2", out="local")
        self.assertEqual(status, 0, said)
        job = self.begin("--max-restarts", "1", "--heartbeat-timeout", "1")
        self.assertTrue(eventually(lambda: len(self.losses()) > 60), self.text("begun.log"))
        session = next(pid for pid in self.descendants(self.sshd.pid) if processes()[pid][0] == self.sshd.pid)
        for pid in [session] + [p for p in self.descendants(session) if "sshd" in processes()[p][2]]:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(job.wait(120), 0, self.text("begun.log"))
        self.assertIn("1 restart", self.text("begun.log"))
        self.assertEqual(self.tensor_bytes("out", 2, 400), self.tensor_bytes("local", 2, 400))

    def stopped(self, number, status):
        job = self.begin("--set", "training.steps=1000000")
        self.assertTrue(eventually(lambda: len(self.losses()) > 20), self.text("begun.log"))
        os.killpg(job.pid, number)
        self.assertEqual(job.wait(60), status, self.text("begun.log"))
        self.assertTrue(eventually(lambda: not self.ours(), 20), [processes().get(pid) for pid in self.ours()])
        self.assertTrue(eventually(lambda: not self.descendants(self.sshd.pid), 20))

    def test_ctrl_c_leaves_nothing(self):
        self.stopped(signal.SIGINT, 130)

    def test_sigterm_saves_and_leaves_nothing(self):
        self.stopped(signal.SIGTERM, 0)
        self.assertIn("stopped by SIGTERM at step", self.text("begun.log"))

    def test_a_launcher_that_is_killed_leaves_nothing(self):
        self.stopped(signal.SIGKILL, -signal.SIGKILL)


if __name__ == "__main__":
    report.main()
