"""The image of examples/kubernetes/Dockerfile, made in fresh systems of Debian (debootstrap, chroot), without Docker.

The stage that builds is checked for its packages only, and what this build installs takes the place of what it would have built:
TRIREME_LONG_TESTS=1 runs all of it, about 25 minutes on 2 cores. Needs root, debootstrap and the mirror that apt has here."""
import glob
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest

import dockerfile
import report
from training import TrainingCase

SOURCE, BUILD = os.environ.get("TRIREME_SOURCE", "."), os.environ.get("TRIREME_BUILD", "build/release")
LONG = "TRIREME_LONG_TESTS" in os.environ
FILE = os.path.join(SOURCE, "examples/kubernetes/Dockerfile")


def sources():
    return sorted(glob.glob("/etc/apt/sources.list.d/*.sources") + glob.glob("/etc/apt/sources.list.d/*.list") + glob.glob("/etc/apt/sources.list"))


def mirror():
    for file in sources():
        with open(file) as lines:
            for line in lines:
                found = re.search(r"https?://[^ \n]+", line.split("#")[0])
                if found and "security" not in found[0]:
                    return found[0]
    return None


def why_not():
    """Of a machine on which no fresh Debian can be made; None if it can."""
    if os.getuid() != 0:
        return "an image is made by root only"
    if not shutil.which("debootstrap"):
        return "debootstrap is not installed"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode != 0:
        return "this container may not mount, and a system without /proc runs nothing"
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or not mirror():
        return f"there is no mirror of Debian in the sources of apt here ({release.get('PRETTY_NAME', 'no Debian')})"
    libtorch = os.environ.get("TRIREME_LIBTORCH", os.path.join(SOURCE, ".venv"))
    if not LONG and (not libtorch.startswith(os.path.join(SOURCE, ".venv")) or glob.glob(libtorch + "/lib/libtorch_cuda.so")):
        return f"the image has the libtorch for the CPU that ./quickstart installs, and this build has {libtorch}"
    if release.get("VERSION_ID") != "12" and not LONG:
        return f"programs that were built on {release['PRETTY_NAME']} do not run in Debian 12 (with TRIREME_LONG_TESTS=1 they are built there)"
    return None


class ImageTest(TrainingCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest(reason)
        cls.place = tempfile.mkdtemp(prefix="image_", dir=BUILD)
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.stages = dockerfile.stages(dockerfile.read(FILE))
        with open(FILE + ".dockerignore") as file:
            cls.context = SOURCE, file.read().split()

    def fresh(self, name):
        """As the image debian:12: made once for each build folder."""
        base = os.path.join(BUILD, "debian-12.tar")
        if not os.path.exists(base):
            making = os.path.join(self.place, "making")
            made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", making, mirror()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if made.returncode != 0:
                self.skipTest("debootstrap could not make a Debian from " + mirror() + ": " + made.stdout.strip().splitlines()[-1])
            subprocess.run(["tar", "-C", making, "--exclude=./var/cache/apt/archives/*.deb", "-cf", base + ".part", "."], check=True)
            os.rename(base + ".part", base)
            shutil.rmtree(making)
        root = dockerfile.Root(os.path.join(self.place, name))
        os.makedirs(root.folder)
        subprocess.run(["tar", "-C", root.folder, "-xf", base], check=True)
        # The network as it is here: sources of apt and of pip, certificates, proxies.
        shutil.rmtree(root.path("/etc/apt/sources.list.d"), ignore_errors=True)
        patterns = ["/etc/apt/apt.conf.d/99*", "/etc/apt/apt.conf.d/*proxy*", "/etc/resolv.conf", "/etc/hosts", "/usr/share/keyrings/debian-*", "/etc/pip.conf", "/etc/xdg/pip/*"]
        for file in sources() + [file for pattern in patterns for file in glob.glob(pattern)]:
            os.makedirs(os.path.dirname(root.path(file)), exist_ok=True)
            shutil.copy(file, root.path(file))
        certificates = "/etc/ssl/certs/ca-certificates.crt"
        if os.path.exists(certificates):
            os.makedirs(root.path("/etc/ssl"), exist_ok=True)
            shutil.copy(certificates, root.path("/etc/ssl/machine-ca.crt"))  # the package ca-certificates writes the usual one
            root.environment |= {"PIP_CERT": "/etc/ssl/machine-ca.crt", "SSL_CERT_FILE": "/etc/ssl/machine-ca.crt"}
        for name in ("http_proxy", "https_proxy", "no_proxy", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            if name in os.environ:
                root.environment[name] = os.environ[name]
        if os.path.isdir(os.environ.get("PIP_FIND_LINKS", "")):
            root.binds.append(os.environ["PIP_FIND_LINKS"])
        root.environment["DEBIAN_FRONTEND"] = "noninteractive"
        return root

    def build_stage(self, name, steps):
        """All packages that its steps install are to be had; Python is of the version that the Dockerfile names."""
        root = self.fresh(name)
        if root.run(["sh", "-c", "apt-get update && apt-cache show python3"], check=False)[0] != 0:
            self.skipTest("apt cannot reach " + mirror())
        for instruction, rest in steps:
            root.step(instruction, rest, self.context, {}, run=None if LONG else self.check_run(root))
        if LONG:
            return root
        _, version = root.run(["sh", "-c", "apt-cache show python3 | sed -n 's/^Version: \\([0-9]*[.][0-9]*\\).*/\\1/p' | head -n 1"])
        python = "python" + version.strip()
        self.assertIn(f"/{python}/", open(FILE).read())
        # Where it would have stood, for those who look for it there. This build's programs look for libtorch in this folder.
        installed = subprocess.run(["cmake", "--install", BUILD, "--prefix", root.path("/opt/trireme")], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.assertEqual(installed.returncode, 0, installed.stdout)
        (libtorch,) = glob.glob(os.path.join(SOURCE, ".venv/lib/python3*/site-packages/torch/lib"))
        inside = root.path(f"/src/.venv/lib/{python}/site-packages/torch")
        os.makedirs(inside)
        os.symlink(libtorch, os.path.join(inside, "lib"))
        return root

    @staticmethod
    def check_run(root):
        def check(command):
            subprocess.run(["sh", "-n", "-c", command], check=True)
            if "apt-get install" in command:
                root.run(["sh", "-c", command.replace("apt-get install", "apt-get install -s")])
            elif "system_packages" in command:
                root.run(["bash", "-c", 'set -euo pipefail; source scripts/setup.sh; apt-get install -s -y --no-install-recommends "${system_packages[@]}"'])
        return check

    def test_the_image_trains(self):
        roots = {}
        for name, image, steps in self.stages:
            self.assertEqual(image, "debian:12")
            if name == "build":
                roots[name] = self.build_stage(name, steps)
                continue
            root = self.fresh(name)
            for instruction, rest in steps:
                root.step(instruction, rest, self.context, roots)
        built = os.path.realpath(SOURCE)
        if not LONG and built != "/src":  # RUNPATH names the folder where it was linked
            os.makedirs(os.path.dirname(root.path(built)), exist_ok=True)
            os.symlink("/src", root.path(built))
        self.assertEqual((root.user, root.directory, root.entrypoint), ("1000", "/work", ["trireme"]))

        # The image itself has all that its programs need.
        _, linked = root.run(["sh", "-c", "ldd /opt/trireme/bin/*"])
        self.assertEqual([line for line in linked.splitlines() if "not found" in line], [], linked)
        status, said = root.run(["trireme", "--help"])
        self.assertIn("train", said)
        _, said = root.run(["trireme", "doctor"])
        self.assertIn("ok  all_reduce", said)

        os.chmod(self.folder, 0o755)
        for file in ("run.json", "tokens.bin"):
            os.chmod(self.path(file), 0o644)
        os.makedirs(self.path("runs"))
        os.chown(self.path("runs"), 1000, 1000)
        status, said = root.run(["trireme", "train", "/data/run.json", "-n", "2", "--out", "/data/runs/out", "--set", "training.steps=2"],
                                extra={"OMP_NUM_THREADS": "1"}, bind=[(self.folder, "/data")], seconds=300)
        self.assertEqual([step for step, _ in self.losses("runs/out")], [1, 2], said)
        self.assertEqual(os.stat(self.path("runs/out/metrics.jsonl")).st_uid, 1000)
        status, said = self.train("-n", "2", "--set", "training.steps=2")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.losses("runs/out"), self.losses(), "the same training in the image and here")


if __name__ == "__main__":
    report.main()
