"""run_pods.py MANIFEST DATA TRIREME PORT [KILL]: what Kubernetes does with the pods of a manifest, on this machine.

Every pod is the manifest's args given to TRIREME (the image's entry point) with the environment that the training operator or the
kubelet gives it, /data being the folder DATA. All host names are this machine. A pod that fails is started again as the manifest says.
KILL is rank,step,signal: once, when so many steps are written."""
import os
import signal
import subprocess
import sys
import time

import yaml

manifest, data, trireme, port = sys.argv[1:5]
kill = sys.argv[5].split(",") if len(sys.argv) > 5 else None
with open(manifest) as file:
    job = yaml.safe_load(file)
log = open(os.path.join(data, "pods.log"), "w")


def pods_of_pytorchjob():
    """pkg/controller.v1/pytorch/envvar.go of the training operator; PET_* are what later releases add."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    world = sum(spec["replicas"] for spec in specs.values())
    master = next(c for c in specs["Master"]["template"]["spec"]["containers"] if c["name"] == "pytorch")
    assert any(p.get("name") == "pytorchjob-port" for p in master["ports"]), "the operator looks for this port"
    for kind, first in (("Master", 0), ("Worker", 1)):
        for index in range(specs[kind]["replicas"]):
            rank = str(first + index)
            yield specs[kind]["template"]["spec"]["containers"][0], {
                "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "RANK": rank,
                "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "PET_NNODES": str(world), "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": "auto"}


def pods_of_job(name, spec):
    for index in range(spec.get("completions", 1)):
        indexed = {"JOB_COMPLETION_INDEX": str(index)} if spec.get("completionMode") == "Indexed" else {}
        yield spec["template"]["spec"]["containers"][0], indexed


def pods_of_jobset():
    (replicated,) = job["spec"]["replicatedJobs"]
    head = f"{job['metadata']['name']}-{replicated['name']}-0-0.{job['spec']['network']['subdomain']}"
    for container, given in pods_of_job(replicated["name"], replicated["template"]["spec"]):
        addresses = [e["value"] for e in container["env"] if e["name"] == "MASTER_ADDR"]
        assert addresses == [head], f"the first pod is {head}"
        yield container, given


def environment(container, given):
    # A pod has nothing of this test's own launcher.
    variables = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS", "HOME", "TRIREME_FAULT") if name in os.environ}
    variables |= given
    for entry in container.get("env", []):
        if "value" in entry:
            variables[entry["name"]] = entry["value"]
        else:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']", path
            variables[entry["name"]] = given["JOB_COMPLETION_INDEX"]
    if "MASTER_ADDR" in variables:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if "TRIREME_SECRET_FILE" in variables:
        assert any(variables["TRIREME_SECRET_FILE"].startswith(m["mountPath"] + "/") for m in container["volumeMounts"])
        variables["TRIREME_SECRET_FILE"] = os.path.join(data, "secret")
    return variables


def start(pod):
    container, given = pod
    args = [data + word.removeprefix("/data") if word.startswith("/data/") else word for word in container["args"]]
    return subprocess.Popen([trireme, *args], env=environment(container, given), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def steps(out):
    try:
        with open(os.path.join(out, "metrics.jsonl")) as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


kind = job["kind"]
pods = list({"PyTorchJob": pods_of_pytorchjob, "JobSet": pods_of_jobset, "Job": lambda: pods_of_job("", job["spec"])}[kind]())
out = pods[0][0]["args"][pods[0][0]["args"].index("--out") + 1].replace("/data", data, 1)
together = kind == "JobSet"
policy = job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] if kind == "PyTorchJob" else None
running = {rank: start(pod) for rank, pod in enumerate(pods)}
starts = 1
while running:
    time.sleep(0.05)
    if kill and steps(out) >= int(kill[1]):
        running[int(kill[0])].send_signal(getattr(signal, "SIG" + kill[2]))
        kill = None
    for rank, process in list(running.items()):
        status = process.poll()
        if status is None:
            continue
        del running[rank]
        print(f"pod {rank} ended with {status if status >= 0 else 128 - status}", flush=True)
        if status == 0:
            continue
        if starts > 30:
            sys.exit("no end of restarts")
        if kind == "PyTorchJob":
            final = policy == "ExitCode" and 0 < status < 128  # IsRetryableExitCode() of the training operator
        else:
            final = status == 2
        if final:
            for other in running.values():
                other.kill()
                other.wait()
            sys.exit(f"the job failed: {'exit code' if kind == 'PyTorchJob' else 'podFailurePolicy'}")
        starts += 1
        if together:
            for other in running.values():
                other.terminate()
            for other in running.values():
                other.wait()
            running = {rank: start(pod) for rank, pod in enumerate(pods)}
            print("all pods started again", flush=True)
            break
        running[rank] = start(pods[rank])
        print(f"pod {rank} started again", flush=True)
print("the job is complete", flush=True)
