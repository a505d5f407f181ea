"""Two hosts on this machine: network namespaces with a cable between them, whose speed can be limited. Needs root. Standard library only."""
import os
import shutil
import subprocess
from pathlib import Path


def why_not():
    """What is missing for it, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "ip and tc (package iproute2) are not installed"
    return None


def run(words):
    done = subprocess.run(words.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class TwoHosts:
    """Use it in a `with` statement, which removes the namespaces at its end."""

    def __init__(self):
        self.names = [f"trireme-bench-{os.getpid()}-{host}" for host in (0, 1)]

    def __enter__(self):
        try:
            for name in self.names:
                run(f"ip netns add {name}")
                run(f"ip -n {name} link set lo up")
            run(f"ip link add cable netns {self.names[0]} type veth peer name cable netns {self.names[1]}")
            for host, name in enumerate(self.names):
                run(f"ip -n {name} addr add {self.address(host)}/24 dev cable")
                run(f"ip -n {name} link set cable up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def address(host):
        return f"10.213.8.{host + 1}"

    def limit(self, rate):
        """`rate` as tc knows it ("1gbit"), the same in both directions; None: as fast as the machine."""
        for name in self.names:
            subprocess.run(f"ip netns exec {name} tc qdisc del dev cable root".split(), capture_output=True)
            if rate:
                run(f"ip netns exec {name} tc qdisc add dev cable root tbf rate {rate} burst 256kb latency 50ms")

    def sent_bytes(self):
        """Bytes that have left either host over the cable, headers included."""
        return sum(int(run(f"ip netns exec {name} cat /sys/class/net/cable/statistics/tx_bytes")) for name in self.names)

    def write_hostfile(self, path, slots):
        Path(path).write_text("".join(f"{name} slots={slots} address={self.address(host)}\n" for host, name in enumerate(self.names)))
