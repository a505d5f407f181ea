"""What a worker asks of parameter servers: the requests of docs/parameter_server.md, over any number of servers that hold rows of each parameter."""

import numpy
import torch


class Stale(Exception):
    """The server had closed the step before this gradient came, and has dropped it."""


class Servers:
    """`connections`: one to each server. `parameters`: (name, tensor) in the model's order; they are written by pull() and push_pull()."""

    def __init__(self, connections, parameters, worker, workers, optimizer, timeout=60.0):
        self._connections = connections
        self._parameters = dict(parameters)
        self._worker = worker
        self._timeout = timeout
        described = [{"name": name, "shape": list(tensor.shape), "dtype": "float32"} for name, tensor in self._parameters.items()]
        join = {"op": "join", "worker": worker, "workers": workers, "parameters": described, "optimizer": optimizer}
        self._layouts = [header for header, _ in self._ask(lambda _: (join, b"", 0))]
        self.clock = max(layout["clock"] for layout in self._layouts)
        self.initialized = all(layout["initialized"] for layout in self._layouts)

    def initialize(self):
        """Gives the servers their first values, this model's."""
        self._ask(lambda layout: ({"op": "init"}, self._gather(layout, lambda name: self._parameters[name]), 0))

    def pull(self):
        """Takes the servers' values, as soon as there are some."""
        self._take(self._ask(lambda layout: ({"op": "pull", "clock": self.clock}, b"", layout["bytes"])))

    def push_pull(self, gradients, loss):
        """Sends a gradient for each parameter, and takes the values after the step. Returns the loss, a mean over the workers where they step together. Errors: Stale."""
        header = {"op": "push_pull", "worker": self._worker, "clock": self.clock, "loss": loss}
        replies = self._ask(lambda layout: (header, self._gather(layout, lambda name: gradients[name]), layout["bytes"]))
        self._take(replies)
        if any(answer["status"] == "stale" for answer, _ in replies):
            raise Stale
        return replies[0][0]["loss"]

    def leave(self):
        self._ask(lambda _: ({"op": "leave", "worker": self._worker}, b"", 0))

    def _ask(self, request):
        """Sends a request to every server before it waits for any."""
        layouts = getattr(self, "_layouts", [None] * len(self._connections))
        replies = [connection.call(*request(layout)) for connection, layout in zip(self._connections, layouts)]
        answers = [reply.wait(self._timeout) for reply in replies]
        for header, _ in answers:
            if header["status"] not in ("ok", "accepted", "stale"):
                raise RuntimeError(f"the server refuses: {header}")
        return answers

    @staticmethod
    def _gather(layout, tensor_of):
        body = numpy.empty(layout["bytes"], numpy.uint8)
        for piece in layout["pieces"]:
            begin, end = piece["rows"]
            values = tensor_of(piece["name"]).detach()[begin:end].contiguous().numpy()
            body[piece["offset"] : piece["offset"] + values.nbytes] = values.reshape(-1).view(numpy.uint8)
        return body

    def _take(self, answers):
        for layout, (header, body) in zip(self._layouts, answers):
            values = numpy.frombuffer(body, numpy.float32)
            for piece in layout["pieces"]:
                begin, end = piece["rows"]
                rows = self._parameters[piece["name"]].data[begin:end]
                at = piece["offset"] // 4
                rows.copy_(torch.from_numpy(values[at : at + rows.numel()].copy()).view_as(rows))
        self.clock = max(header["clock"] for header, _ in answers)
