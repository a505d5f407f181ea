"""Writes the inputs of tests/fuzz/corpus that people cannot type: python3 tests/fuzz/make_corpus.py

What a fuzzer found lies there too, as regression-*; this program leaves those and every other file alone.
"""
import base64
import gzip
import json
import pathlib
import struct
import zlib

CORPUS = pathlib.Path(__file__).parent / "corpus"


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def gz(content):
    return gzip.compress(content, mtime=0)


def idx(dims, elements):
    return bytes([0, 0, 8, len(dims)]) + b"".join(struct.pack(">I", dim) for dim in dims) + elements


def idx_pair(images, labels):
    return struct.pack("<H", len(images)) + images + labels


def r_string(text, flags=0x00040009):
    return struct.pack(">II", flags, len(text)) + text


def r_vector(strings, version=2):
    head = b"X\n" + struct.pack(">III", version, 0x00040000, 0x00020300)
    if version == 3:
        head += struct.pack(">I", 5) + b"UTF-8"
    return head + struct.pack(">II", 16, len(strings)) + b"".join(strings)


def rdb_block(content):
    return struct.pack(">I", len(content)) + zlib.compress(content)


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def rpc_frame(kind, number, header, body, body_bytes=None, body_at=2**64 - 1, room_bytes=0, room_at=2**64 - 1):
    """A frame of "tcp://": its head, the header, the body."""
    size = len(body) if body_bytes is None else body_bytes
    return b"TRQ\x01" + struct.pack("<BxxxQQQQQQ", kind, number, len(header), size, body_at, room_bytes, room_at) + header + body


def message(op, *parts):
    """One request to the store: texts, lists of texts, numbers."""
    body = bytes([op])
    for part in parts:
        if isinstance(part, int):
            body += struct.pack("<q", part)
        elif isinstance(part, list):
            body += struct.pack("<I", len(part)) + b"".join(struct.pack("<I", len(one)) + one for one in part)
        else:
            body += struct.pack("<I", len(part)) + part
    return struct.pack("<I", len(body)) + body


def charsmap(size, replaced, offset, text):
    """A double array that replaces one byte by "x", as base64, and a text."""
    units = [0] * size
    units[0] = 256 << 10
    units[256 ^ replaced] = offset << 10 | 1 << 8 | replaced
    units[256 ^ replaced ^ offset] = 1 << 31
    return base64.b64encode(struct.pack(f"<{size + 1}I", 4 * size, *units) + b"x\0") + b"\x01" + text


def token_shard(width, tokens, documents, vocab_size=300, version=1, mask=None):
    """The target puts in the checksum of the header."""
    data = b"".join(token.to_bytes(width, "little") for token in tokens)
    padding = bytes(-(128 + len(data)) % 64)
    offset = 128 + len(data) + len(padding)
    header = b"TRTOKENS" + struct.pack("<IIQQQQQQ", version, width, vocab_size, len(tokens), len(documents), offset, 7, 0)
    counted = 0 if mask is None else sum(map(int.bit_count, mask))
    table = struct.pack(f"<{len(documents)}Q", *documents)
    end = b"" if mask is None else bytes(-(offset + len(table)) % 64) + mask
    return header + struct.pack("<Q", counted) + bytes(56) + data + padding + table + end


def megatron_index(code, lengths, documents, width=2, modes=b"", version=1):
    offsets = [width * sum(lengths[:i]) for i in range(len(lengths))]
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, len(lengths), len(documents)) + struct.pack(f"<{len(lengths)}i", *lengths)
            + struct.pack(f"<{len(offsets)}q", *offsets) + struct.pack(f"<{len(documents)}q", *documents) + modes)


def main():
    write("gzip", "text", gz(b"one two three one two three\n" * 20))
    write("gzip", "empty", gz(b""))
    write("gzip", "two-members", gz(b"first ") + gz(b"second"))
    write("gzip", "named", b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x02\x00ab" + b"name\x00" + b"comment\x00" + b"\x00\x00" + gz(b"x")[10:])
    write("gzip", "cut", gz(b"0123456789" * 30)[:-9])
    write("gzip", "padded", gz(b"end") + bytes(12))

    plain = r_vector([r_string(b"It is a truth"), r_string("caf\xe9".encode("latin-1"), 0x00040009 & ~0xF000 | 0x4000), struct.pack(">Ii", 9, -1)])
    write("rdata", "inside", plain)
    write("rdata", "inside-version-3", r_vector([r_string(b"universally acknowledged")], 3))
    write("rdata", "file", rdb_block(plain) + rdb_block(r_vector([])))
    write("rdata", "attributes", b"X\n" + struct.pack(">III", 2, 0, 0) + struct.pack(">II", 16 | 1 << 9, 0))

    write("token_shard", "narrow", token_shard(2, range(70), [0, 5, 69]))
    write("token_shard", "wide", token_shard(4, [1, 128255], [0], 128256))
    write("token_shard", "continued", token_shard(2, [1, 2, 3], []))
    write("token_shard", "cut", token_shard(2, range(70), [0, 5, 69])[:-9])
    write("token_shard", "table", token_shard(2, range(9), [4, 4]))
    write("token_shard", "version", token_shard(2, range(9), [0], version=3))
    write("token_shard", "masked", token_shard(2, range(70), [0, 5, 69], version=2, mask=bytes([255, 0, 3, 128, 7, 1, 0, 0, 32])))
    write("token_shard", "mask-cut", token_shard(2, range(70), [0], version=2, mask=b"1234"))

    write("megatron_index", "uint16", megatron_index(8, [3, 0, 5], [0, 2, 3]))
    write("megatron_index", "int32", megatron_index(4, [1], [0, 1], width=4, modes=b"\0"))
    write("megatron_index", "float", megatron_index(7, [1], [0, 1]))
    write("megatron_index", "cut", megatron_index(8, [3, 4], [0, 1, 2])[:-4])
    write("megatron_index", "huge", megatron_index(8, [], [])[:18] + struct.pack("<QQ", 2**63, 2**63))
    write("megatron_index", "negative", megatron_index(8, [3, -1], [0, 2]))

    images, labels = idx([3, 2, 2], bytes(range(12))), idx([3], bytes([0, 9, 4]))
    write("idx", "plain", idx_pair(images, labels))
    write("idx", "packed", idx_pair(gz(images), gz(labels)))
    write("idx", "exchanged", idx_pair(labels, images))
    write("idx", "huge", idx_pair(idx([2**32 - 1] * 3, b""), labels))
    write("idx", "none", idx_pair(idx([0, 28, 28], b""), idx([0], b"")))

    write("cifar10", "one", bytes([7]) + bytes(range(256)) * 12)
    write("cifar10", "label", bytes([10]) + bytes(3072))
    write("cifar10", "cut", bytes([3]) + bytes(100))

    two = [("w", "F32", [2, 3], bytes(24)), ("b", "BF16", [], b"\x80\x3f")]
    write("safetensors", "two", safetensors(two))
    write("safetensors", "metadata", safetensors(two[:1], {"format": "pt", "note": "\u00e9"}))
    write("safetensors", "empty", safetensors([]))
    write("safetensors", "dims", safetensors([("zero", "I64", [0, 5], b""), ("eight", "F8_E4M3", [1] * 9, b"\x00"), ("flag", "BOOL", [2], b"\x01\x00")]))
    write("safetensors", "long", struct.pack("<Q", 2**63) + b"{}")

    write("charsmap", "small", charsmap(1024, 65, 1, b"ABA\xcc\x81"))
    write("charsmap", "smaller", charsmap(300, 10, 2, b"a\nb"))

    conversation = [
        message(1, b"here/0", b"2 host"), message(2, [b"here/0", b"here/1"]), message(3, b"pulse", 1), message(3, b"pulse", -(2**63)),
        message(4, [b"never", b"here/0"], 1000), message(5, b"here/0", b"2 host", b"3"), message(6, b"here/0"),
        message(7, [b"pulse"]), message(8), message(9, b"log", b"line\n"), message(10, b"gone", b"1", b"left")]
    write("store_messages", "all", b"".join(conversation))
    for place, one in enumerate(conversation):
        write("store_messages", f"operation-{place}", one)
    write("store_messages", "unknown", message(11, b"x"))
    write("store_messages", "many", struct.pack("<IBI", 5, 2, 2**32 - 1))
    write("store_messages", "greeting", b"TRIREME\x01" + bytes(56))
    for kind, name in ((1, "requests"), (2, "replies")):
        frames = [rpc_frame(kind, number, header, body) for number, (header, body) in enumerate(((b"{}", b""), (b"header", b"body" * 30), (b"", b"b")))]
        write("rpc_frames", name, b"".join(frames))
        write("rpc_frames", name + "-cut", b"".join(frames)[:-20])
    write("rpc_frames", "shared", rpc_frame(1, 5, b"h", b"", body_bytes=100, body_at=64, room_bytes=4096, room_at=4096))
    write("rpc_frames", "outside", rpc_frame(1, 5, b"h", b"", body_bytes=100, body_at=65500))
    write("rpc_frames", "huge", rpc_frame(1, 5, b"h", b"", body_bytes=1 << 60))

    # The first byte says in which pieces the frame comes.
    frame = b"\x08\x05" + b"\x12\x02{}" + b"\x18\x80\x08" + b"\x20\x40" + b"\x2a\x04body"
    unknown = b"\x9a\x06\x03abc" + b"\x30\x05" + b"\xa3\x06\x08\x01\xa4\x06" + b"\x3d1234" + b"\x4112345678"
    write("grpc_frames", "whole", b"\x0f" + frame)
    write("grpc_frames", "pieces", b"\x01" + frame)
    write("grpc_frames", "empty-pieces", b"\x00" + frame)
    write("grpc_frames", "unknown-fields", b"\x03" + unknown + frame)
    write("grpc_frames", "reversed", b"\x02" + b"\x2a\x01b" + b"\x20\x01" + b"\x18\x01" + b"\x12\x01h" + b"\x08\x01")
    write("grpc_frames", "promises", b"\x05" + b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    write("grpc_frames", "greeting", b"\x0a\x30TRIREME\x01" + bytes(40))


if __name__ == "__main__":
    main()
