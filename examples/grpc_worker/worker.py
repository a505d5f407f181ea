"""A worker of a Trireme job that is not written in C++: PyTorch computes gradients, parameter servers step.

    python examples/grpc_worker/worker.py --servers grpc://10.0.0.1:4711,grpc://10.0.0.2:4711 --worker 0/2 --data samples.bin --steps 20 --save parameters.bin

The secret comes from TRIREME_SECRET_FILE, as everywhere; certificates from TRIREME_TLS_CA, TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY. `--data`: float32 numbers, six inputs and three targets a
sample. Worker w of W takes the samples w::W of each batch. `--save` writes the last parameters one after the other, as float32.
"""

import argparse
import itertools
import pathlib

import numpy
import torch

from connection import Connection, load_proto
from parameters import Servers, Stale

INPUTS, TARGETS = 6, 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="addresses, separated by commas")
    parser.add_argument("--worker", default="0/1", help="this worker's number and how many there are: 0/2")
    parser.add_argument("--job", default="", help="the job's name (TRIREME_RUN_ID of the servers)")
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="samples of all workers in a step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save")
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--proto", default=root / "trireme/extensions/server/rpc/grpc/parameter_server.proto", help="installed in share/trireme")
    return parser.parse_args()


def batches(path, size, worker, workers):
    """This worker's samples of each batch, over and over."""
    samples = torch.from_numpy(numpy.fromfile(path, numpy.float32).reshape(-1, INPUTS + TARGETS))
    for begin in itertools.cycle(range(0, len(samples) - size + 1, size)):
        mine = samples[begin + worker : begin + size : workers]
        yield mine[:, :INPUTS], mine[:, INPUTS:]


def main():
    options = arguments()
    worker, workers = (int(number) for number in options.worker.split("/"))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 16), torch.nn.Tanh(), torch.nn.Linear(16, TARGETS))
    proto = load_proto(options.proto)
    connections = [Connection(address, proto, job=options.job) for address in options.servers.split(",")]
    servers = Servers(connections, model.named_parameters(), worker, workers, {"type": "SGD", "params": {"lr": options.lr}})
    if worker == 0 and not servers.initialized:
        servers.initialize()
    servers.pull()
    for step, (inputs, targets) in zip(range(options.steps), batches(options.data, options.batch, worker, workers)):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        try:
            mean = servers.push_pull(dict(zip([name for name, _ in model.named_parameters()], gradients)), loss.item())
            print(f"step {step + 1}: loss {mean:.6f}", flush=True)
        except Stale:
            print(f"step {step + 1}: came too late", flush=True)
    servers.leave()
    if options.save:
        torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().tofile(options.save)
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    main()
