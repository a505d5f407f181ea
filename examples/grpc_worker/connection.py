"""A connection to a Trireme parameter server over gRPC, by nothing but its published parameter_server.proto (which says how the messages travel)."""

import collections
import hashlib
import hmac
import importlib
import json
import os
import pathlib
import secrets
import sys
import tempfile
import threading

import grpc
from grpc_tools import protoc

PART = 1 << 20  # bytes of a body in one frame


def load_proto(path):
    """The classes of the messages. A project would rather run protoc once and keep what it writes."""
    path = pathlib.Path(path).resolve()
    with tempfile.TemporaryDirectory() as folder:
        if protoc.main(["protoc", f"-I{path.parent}", f"--python_out={folder}", path.name]) != 0:
            raise RuntimeError(f"protoc does not take {path}")
        sys.path.insert(0, folder)
        try:
            return importlib.import_module(path.stem + "_pb2")
        finally:
            sys.path.remove(folder)


def secret_from_environment():
    """The job's secret: 32 bytes or 64 hexadecimal digits in TRIREME_SECRET_FILE; none where that is not set."""
    name = os.environ.get("TRIREME_SECRET_FILE")
    if not name:
        return b""
    data = pathlib.Path(name).read_bytes()
    return data if len(data) == 32 else bytes.fromhex(data.decode().strip())


def credentials():
    """Of TLS, from the same variables that Trireme reads."""

    def read(variable):
        return pathlib.Path(os.environ[variable]).read_bytes() if os.environ.get(variable) else None

    return grpc.ssl_channel_credentials(read("TRIREME_TLS_CA"), read("TRIREME_TLS_KEY"), read("TRIREME_TLS_CERTIFICATE"))


class Lost(Exception):
    """The connection has ended: the server is gone, refuses this worker, or does not answer."""


class Reply:
    """Comes when the server has answered."""

    def __init__(self):
        self._there = threading.Event()
        self._error = None
        self.header = None
        self.body = None
        self.received = 0

    def wait(self, timeout=60.0):
        """The header as an object and the body. Errors: Lost."""
        if not self._there.wait(timeout):
            raise Lost(f"no answer within {timeout} s")
        if self._error is not None:
            raise Lost(self._error)
        return self.header, self.body

    def settle(self, error=None):
        self._error = error
        self._there.set()


class Connection:
    """`address` is grpc://HOST:PORT or grpcs://HOST:PORT."""

    def __init__(self, address, proto, secret=None, job="", timeout=60.0):
        self._proto = proto
        scheme, target = address.split("://")
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", 5000),
            ("grpc.keepalive_timeout_ms", 10000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        if scheme == "grpcs":
            self._channel = grpc.secure_channel(target, credentials(), options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._frames = collections.deque()
        self._waiting = {}
        self._last_id = 0
        self._ended = None
        try:
            self._open(secret_from_environment() if secret is None else secret, job, timeout)
        except grpc.RpcError as error:
            self._channel.close()
            raise Lost(f"{error.code().name}: {error.details()}") from error
        except Exception:
            self._channel.close()
            raise
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _open(self, secret, job, timeout):
        service = "/trireme.rpc.v1.ParameterServer/"
        challenge = self._channel.unary_unary(
            service + "Challenge",
            request_serializer=self._proto.ChallengeRequest.SerializeToString,
            response_deserializer=self._proto.ChallengeReply.FromString,
        )
        greeting = challenge(self._proto.ChallengeRequest(), timeout=timeout, wait_for_ready=True).greeting
        if greeting[:8] != b"TRIREME\x01":
            raise Lost("this is no parameter server of this version")
        if greeting[8:16] != hashlib.sha256(job.encode()).digest()[:8]:
            raise Lost("this is the parameter server of another job")
        answer = b"TRIREME\x01" + secrets.token_bytes(24)
        answer += hmac.digest(secret, b"client" + greeting + answer, "sha256")
        exchange = self._channel.stream_stream(
            service + "Exchange",
            request_serializer=self._proto.Frame.SerializeToString,
            response_deserializer=self._proto.Frame.FromString,
        )
        self._stream = exchange(self._outgoing(), metadata=(("trireme-greeting-bin", greeting), ("trireme-answer-bin", answer)))
        # Blocks until the server has looked at the answer; one that refuses it sends no proof.
        proof = dict(self._stream.initial_metadata()).get("trireme-proof-bin", b"")
        if not proof:
            raise Lost(f"{self._stream.code().name}: {self._stream.details()}")
        if not hmac.compare_digest(proof, hmac.digest(secret, b"server" + greeting + answer, "sha256")):
            self._stream.cancel()
            raise Lost("the server does not know the secret")

    def call(self, header, body=b"", room=0):
        """Sends a request: a header (an object), a body of bytes, and how many bytes the body of the reply may have."""
        reply = Reply()
        text = json.dumps(header)
        body = memoryview(body).cast("B")
        with self._lock:
            if self._ended is not None:
                reply.settle(self._ended)
                return reply
            self._last_id += 1
            number = self._last_id
            self._waiting[number] = reply
            self._frames.append(self._proto.Frame(id=number, header=text, body_bytes=len(body), room_bytes=room, body=bytes(body[:PART])))
            for begin in range(PART, len(body), PART):
                self._frames.append(self._proto.Frame(id=number, body=bytes(body[begin : begin + PART])))
            self._news.notify()
        return reply

    def close(self):
        self._end("closed here")
        self._stream.cancel()
        self._thread.join()
        self._channel.close()

    def _outgoing(self):
        while True:
            with self._lock:
                self._news.wait_for(lambda: self._frames or self._ended is not None)
                if self._ended is not None:
                    return
                frame = self._frames.popleft()
            yield frame

    def _receive(self):
        try:
            for frame in self._stream:
                reply = self._waiting[frame.id]
                if reply.header is None:
                    reply.header = json.loads(frame.header)
                    reply.body = bytearray(frame.body_bytes)
                reply.body[reply.received : reply.received + len(frame.body)] = frame.body
                reply.received += len(frame.body)
                if reply.received == len(reply.body):
                    with self._lock:
                        del self._waiting[frame.id]
                    reply.settle()
            self._end("the server has left")
        except grpc.RpcError as error:
            self._end(f"{error.code().name}: {error.details()}")
        except Exception as error:  # a server that breaks the protocol
            self._stream.cancel()
            self._end(repr(error))

    def _end(self, why):
        with self._lock:
            if self._ended is None:
                self._ended = why
            for reply in self._waiting.values():
                reply.settle(self._ended)
            self._waiting.clear()
            self._news.notify_all()
