"""A peer of grpc:// that is not ours: gRPC and protobuf for Python. `grpc_peer.py CASE ADDRESS`, where the server echoes (grpc_checks.h); ends with 0 when all is well.
`grpc_peer.py bad_server WHAT` prints its port, does one thing wrong, and ends with its first client."""

import hashlib
import hmac
import os
import pathlib
import random
import secrets
import socket
import sys
import threading
from concurrent import futures

import grpc

root = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(root / "examples/grpc_worker"))
import connection

proto = connection.load_proto(root / "trireme/extensions/server/rpc/grpc/parameter_server.proto")
SECRET = b"0123456789abcdef0123456789abcdef"
JOB = "the job"
SERVICE = "/trireme.rpc.v1.ParameterServer/"


def connect(address, secret=SECRET, job=JOB):
    return connection.Connection(address, proto, secret, job)


def echo_works(address):
    link = connect(address)
    for size in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 3]:
        body = random.Random(size).randbytes(size)
        header, back = link.call({"bytes": size, "text": "grün"}, body, size).wait()
        assert header == {"bytes": size, "text": "grün"}, header
        assert back == body[::-1], size
    replies = [link.call({"n": n}, bytes([n % 256]) * 100, 100) for n in range(500)]
    for n, reply in enumerate(replies):
        header, back = reply.wait()
        assert header == {"n": n} and back == bytes([n % 256]) * 100
    link.close()


def refused(call):
    try:
        call()
    except connection.Lost as error:
        return str(error)
    raise AssertionError("it was let in")


def greeting_of(channel):
    challenge = channel.unary_unary(
        SERVICE + "Challenge", request_serializer=proto.ChallengeRequest.SerializeToString, response_deserializer=proto.ChallengeReply.FromString
    )
    return challenge(proto.ChallengeRequest(), timeout=60, wait_for_ready=True).greeting


def answer_to(greeting, secret=SECRET):
    answer = b"TRIREME\x01" + secrets.token_bytes(24)
    return answer + hmac.digest(secret, b"client" + greeting + answer, "sha256")


def end_of(channel, frames, metadata, method="Exchange", serializer=proto.Frame.SerializeToString):
    """How the stream ends with these frames."""
    stream = channel.stream_stream(SERVICE + method, request_serializer=serializer, response_deserializer=proto.Frame.FromString)
    try:
        for _ in stream(iter(frames), metadata=metadata, timeout=60):
            pass
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def only_who_knows_the_secret(address):
    assert "wrong secret" in refused(lambda: connect(address, secret=b"x" * 32))
    assert "wrong secret" in refused(lambda: connect(address, secret=b""))
    assert "another job" in refused(lambda: connect(address, job="another"))
    with grpc.insecure_channel(address.split("://")[1]) as channel:
        greeting = greeting_of(channel)
        assert greeting[8:16] == hashlib.sha256(JOB.encode()).digest()[:8]
        answer = answer_to(greeting)
        full = (("trireme-greeting-bin", greeting), ("trireme-answer-bin", answer))
        assert end_of(channel, [], ())[0] == "UNAUTHENTICATED"
        assert end_of(channel, [], full[:1])[0] == "UNAUTHENTICATED"
        assert end_of(channel, [], (full[0], ("trireme-answer-bin", answer[:-1])))[0] == "UNAUTHENTICATED"
        assert end_of(channel, [], full) == ("OK", "")
        # Once overheard, it opens nothing: neither again, nor with a fresh greeting; and one made up is none.
        assert end_of(channel, [], full)[0] == "UNAUTHENTICATED"
        assert "wrong secret" in end_of(channel, [], (("trireme-greeting-bin", greeting_of(channel)), full[1]))[1]
        made_up = greeting[:16] + secrets.token_bytes(32)
        assert "greeting is unknown" in end_of(channel, [], (("trireme-greeting-bin", made_up), ("trireme-answer-bin", answer_to(made_up))))[1]


def whoever_breaks_the_rules_is_put_out(address):
    frame = proto.Frame
    with grpc.insecure_channel(address.split("://")[1], [("grpc.max_send_message_length", -1)]) as channel:

        def end(*frames, serializer=frame.SerializeToString):
            greeting = greeting_of(channel)
            return end_of(channel, frames, (("trireme-greeting-bin", greeting), ("trireme-answer-bin", answer_to(greeting))), serializer=serializer)

        longer = end(frame(id=1, header="{}", body_bytes=3, body=b"four"))
        assert longer[0] == "INVALID_ARGUMENT" and "longer than its body_bytes" in longer[1], longer
        longer = end(frame(id=1, header="{}", body_bytes=3, body=b"tw"), frame(id=1, body=b"o!"))
        assert longer[0] == "INVALID_ARGUMENT" and "longer than its body_bytes" in longer[1], longer
        between = end(frame(id=1, header="{}", body_bytes=3, body=b"tw"), frame(id=2, header="{}"))
        assert between[0] == "INVALID_ARGUMENT" and "before the body of request 1 is complete" in between[1], between
        nothing = end(frame(id=1, header="{}", body_bytes=3, body=b"tw"), frame(id=1))
        assert nothing[0] == "INVALID_ARGUMENT" and "is empty" in nothing[1], nothing
        for promise in [frame(id=1, body_bytes=1 << 60), frame(id=1, room_bytes=1 << 63)]:
            assert end(promise)[0] == "RESOURCE_EXHAUSTED", end(promise)
        for garbage in [b"\xff" * 20, b"\x08", b"\x12\x05ab", b"\x00\x00", b"\x0b" * 40, b"\x0f"]:
            assert end(garbage, serializer=lambda data: data)[0] == "INVALID_ARGUMENT", garbage
        assert end(frame(id=1, header="{}", body=bytes(65 << 20), body_bytes=65 << 20))[0] == "RESOURCE_EXHAUSTED"
        unknown = end(b"\x08\x01\x12\x02{}" + b"\x9a\x06\x03abc" + b"\x30\x05" + b"\xa3\x06\x08\x01\xa4\x06", serializer=lambda data: data)
        assert unknown == ("OK", ""), unknown  # fields of later versions, one of them a group
        assert end_of(channel, [], (), method="Train")[0] == "UNIMPLEMENTED"
    # A stranger does not get so far.
    host, port = address.split("://")[1].rsplit(":", 1)
    for seed in range(200):
        with socket.create_connection((host, int(port))) as stranger:
            try:
                stranger.sendall(random.Random(seed).randbytes(500))
            except OSError:
                pass
    echo_works(address)


def compressed_frames_are_taken(address):
    with grpc.insecure_channel(address.split("://")[1], compression=grpc.Compression.Gzip) as channel:
        greeting = greeting_of(channel)
        stream = channel.stream_stream(SERVICE + "Exchange", request_serializer=proto.Frame.SerializeToString, response_deserializer=proto.Frame.FromString)
        replied = threading.Event()

        def frames():
            yield proto.Frame(id=7, header="{}", body_bytes=10000, room_bytes=10000, body=bytes(9999) + b"z")
            replied.wait(60)  # who has ended its half of the stream has left

        replies = stream(frames(), metadata=(("trireme-greeting-bin", greeting), ("trireme-answer-bin", answer_to(greeting))), timeout=60)
        reply = next(replies)
        replied.set()
        assert reply.id == 7 and reply.body == b"z" + bytes(9999)


def tls_works(address):
    os.environ["TRIREME_TLS_CA"] = os.environ["FOLDER"] + "/ca.pem"
    echo_works(address)


def bad_server(what):
    served = threading.Event()

    def greet(_, context):
        if what == "version":  # its client comes no further
            context.add_callback(served.set)
        return proto.ChallengeReply(greeting=b"TRIREME" + (b"\x02" if what == "version" else b"\x01") + hashlib.sha256(JOB.encode()).digest()[:8] + bytes(32))

    def exchange(frames, context):
        context.add_callback(served.set)
        metadata = dict(context.invocation_metadata())
        message = b"server" + metadata["trireme-greeting-bin"] + metadata["trireme-answer-bin"]
        proof = hmac.digest(b"guessed" if what == "proof" else SECRET, message, "sha256")
        context.send_initial_metadata(() if what == "no_proof" else (("trireme-proof-bin", proof),))
        for frame in frames:
            if what == "no_request":
                yield proto.Frame(id=frame.id + 1)
            elif what == "too_long":
                yield proto.Frame(id=frame.id, body_bytes=frame.room_bytes + 1, body=bytes(frame.room_bytes + 1))
            elif what == "longer":
                yield proto.Frame(id=frame.id, body_bytes=frame.room_bytes, body=bytes(frame.room_bytes + 1))
            elif what == "garbage":
                yield b"\xff" * 30

    def to_bytes(message):
        return message if isinstance(message, bytes) else message.SerializeToString()

    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = {
        "Challenge": grpc.unary_unary_rpc_method_handler(greet, proto.ChallengeRequest.FromString, to_bytes),
        "Exchange": grpc.stream_stream_rpc_method_handler(exchange, proto.Frame.FromString, to_bytes),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("trireme.rpc.v1.ParameterServer", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    served.wait(60)
    server.stop(None).wait()


globals()[sys.argv[1]](sys.argv[2])
