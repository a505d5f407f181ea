"""The steps of a Dockerfile in folders of this machine: fresh systems of Debian, changed by chroot. Knows the instructions that ours has."""
import fnmatch
import os
import re
import shlex
import shutil
import subprocess

INSTRUCTIONS = ("FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "ENTRYPOINT")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def read(path):
    """[(instruction, rest)]; lines that end in \\ go on, # begins a comment."""
    with open(path) as file:
        lines = [line for line in file.read().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    steps = [tuple(line.strip().split(None, 1)) for line in joined.splitlines() if line.strip()]
    unknown = [step for step in steps if len(step) != 2 or step[0] not in INSTRUCTIONS]
    if unknown:
        raise ValueError(f"{path}: this test does not know {unknown}")
    return steps


def stages(steps):
    """[(name or number, image, steps)]"""
    found = []
    for step in steps:
        if step[0] == "FROM":
            image, _, name = step[1].partition(" AS ")
            found.append((name.strip() or str(len(found)), image.strip(), []))
        else:
            found[-1][2].append(step)
    return found


class Root:
    """A fresh system in a folder, and what the steps have set."""

    def __init__(self, folder):
        self.folder, self.environment, self.user, self.directory, self.entrypoint = folder, {}, "0", "/", []
        self.binds = []  # folders of this machine that it sees

    def path(self, inside):
        return os.path.join(self.folder, inside.lstrip("/"))

    def run(self, command, user=None, extra=None, check=True, seconds=3600, bind=()):
        """A command (list) in it. Mounts and processes live in namespaces of their own and go with them."""
        user = user or self.user
        # As Docker: a user without a line in /etc/passwd is at home in /.
        environment = {"PATH": PATH, "HOME": "/root" if user == "0" else "/", **self.environment, **(extra or {})}
        binds = [*bind, *((folder, folder) for folder in self.binds)]
        for _, inside in binds:
            os.makedirs(self.path(inside), exist_ok=True)
        mounts = "".join(f"mount --bind {shlex.quote(outside)} {shlex.quote(self.path(inside))}; " for outside, inside in binds)
        script = (f"mount --make-rprivate /; cd {shlex.quote(self.folder)}; mount -t proc proc proc; mount --rbind /dev dev; "
                  f"mount -t tmpfs -o mode=1777 tmpfs tmp; {mounts} exec chroot --userspec={user}:{user} --groups= . /usr/bin/env -i \"$@\"")
        variables = [f"{name}={value}" for name, value in environment.items()]
        inside = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self.directory, *command]
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", script, "bash", *variables, *inside],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, errors="replace")
        if check and done.returncode != 0:
            raise AssertionError(f"{shlex.join(command)} in the image ended with {done.returncode}:\n{done.stdout[-6000:]}")
        return done.returncode, done.stdout

    def copy(self, source, target):
        """COPY FOLDER FOLDER: what is in it."""
        os.makedirs(self.path(target), exist_ok=True)
        subprocess.run(["cp", "-a", source + "/.", self.path(target)], check=True)

    def step(self, instruction, rest, context, roots, run=None):
        """`run` takes a RUN's command, in place of a shell in the image."""
        if instruction == "RUN":
            (run or (lambda command: self.run(["/bin/sh", "-c", command])))(rest)
        elif instruction == "COPY":
            words = shlex.split(rest)
            if words[0].startswith("--from="):
                other = roots[words[0].removeprefix("--from=")]
                self.copy(other.path(words[1]), words[2])
            elif words[0] == ".":
                self.copy_context(context, words[1])
            else:
                raise ValueError(f"COPY {rest}: this test knows . and --from=")
        elif instruction == "WORKDIR":
            self.directory = rest
            os.makedirs(self.path(rest), exist_ok=True)
        elif instruction == "ENV":
            name, value = rest.split("=", 1)
            self.environment[name] = value.replace("$PATH", self.environment.get("PATH", PATH))
        elif instruction == "USER":
            self.user = rest
        elif instruction == "ENTRYPOINT":
            self.entrypoint = [word.strip(' "') for word in rest.strip("[]").split(",")]

    def copy_context(self, context, target):
        """What git has, as a clone would; without what .dockerignore names."""
        folder, ignored = context
        listed = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout
        for name in filter(None, files.split("\0")):
            if any(fnmatch.fnmatch(name.split("/")[0], pattern) for pattern in ignored) or not os.path.exists(os.path.join(folder, name)):
                continue
            to = os.path.join(self.path(target), name)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(os.path.join(folder, name), to, follow_symlinks=False)
