"""What a worker asks of parameter servers: the requests of docs/parameter_server.md, over any number of servers that hold rows of each parameter."""

import numpy
import torch


class Stale(Exception):
    """The server had closed the step before this gradient came, and has dropped it."""


def in_rows(tensor):
    """Two dims: the rows that servers share, and what is in a row."""
    return tensor.detach().view(tensor.shape[0] if tensor.dim() > 0 else 1, -1)


class Servers:
    """`connections`: one to each server. `parameters`: (name, tensor) in the model's order; they are written by pull() and push_pull()."""

    def __init__(self, connections, parameters, worker, workers, optimizer, timeout=60.0):
        self._connections = connections
        self._parameters = dict(parameters)
        self._timeout = timeout
        described = [{"name": name, "shape": list(tensor.shape), "dtype": "float32"} for name, tensor in self._parameters.items()]
        join = {"op": "join", "worker": worker, "workers": workers, "parameters": described, "optimizer": optimizer}
        self._layouts = [header for header, _ in self._ask(lambda _: (join, b"", 0))]
        self.initialized = all(layout["initialized"] for layout in self._layouts)

    def initialize(self):
        """Gives the servers their first values, this model's."""
        self._ask(lambda layout: ({"op": "init"}, self._gather(layout, lambda name: self._parameters[name]), 0))

    def pull(self):
        """Takes the servers' values, as soon as there are some."""
        self._take(self._ask(lambda layout: ({"op": "pull", "clock": layout["clock"]}, b"", layout["bytes"])))

    def push_pull(self, gradients, loss):
        """Sends a gradient for each parameter, and takes the values after the step. Returns the loss, a mean over the workers where they step together. Errors: Stale."""
        replies = self._ask(
            lambda layout: (
                {"op": "push_pull", "clock": layout["clock"], "loss": loss},
                self._gather(layout, lambda name: gradients[name]),
                layout["bytes"],
            )
        )
        self._take(replies)
        if any(answer["status"] == "stale" for answer, _ in replies):
            raise Stale
        return replies[0][0]["loss"]

    def leave(self):
        self._ask(lambda _: ({"op": "leave"}, b"", 0))

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
            values = in_rows(tensor_of(piece["name"]).contiguous())[begin:end].numpy()
            body[piece["offset"] : piece["offset"] + values.nbytes] = values.reshape(-1).view(numpy.uint8)
        return body

    def _take(self, answers):
        """Copies each server's values to where they belong."""
        for layout, (header, body) in zip(self._layouts, answers):
            for piece in layout["pieces"]:
                begin, end = piece["rows"]
                rows = in_rows(self._parameters[piece["name"]])[begin:end]
                values = numpy.frombuffer(body, numpy.float32, rows.numel(), piece["offset"])
                rows.copy_(torch.from_numpy(values.copy()).view_as(rows))
            layout["clock"] = header["clock"]  # each server counts its own updates
