#pragma once

#include <cstddef>
#include <cstdint>

/// The part of gRPC that Trireme needs, as plain functions.
///
/// libtorch exports symbols of its own protobuf, and a process must not mix two. So all code that includes gRPC's
/// headers is in a shared module without libtorch, loaded only for a "grpc://" address (grpc_runtime.h). This table is
/// the interface to it. The module encodes its few messages itself (frames.h), so neither it nor its libraries contain
/// protobuf.
namespace trireme::rpc::grpc {

/// Increase it when this file changes.
constexpr int kInterfaceVersion = 3;

/// Bytes owned by the caller, not zero-terminated.
struct Text {
  const char* data;
  size_t size;
};

struct Options {
  /// HOST:PORT.
  Text target;
  /// Server only: a socket that already listens and stays the caller's, or -1.
  int listening;
  /// 1: use TLS. The next three are PEM or empty: this side's certificate with its chain, its key, and the trusted
  /// authority. A server with `authority` requires certificates from its clients.
  int tls;
  Text certificate;
  Text key;
  Text authority;
  /// 32 bytes, or empty.
  Text secret;
  Text job;
  /// Silence in ms after which the peer is pinged, and further silence after which the connection is given up.
  int64_t ask_after_ms;
  int64_t give_up_after_ms;
};

/// Describes a failure.
struct Trouble {
  /// 1: a retry cannot help.
  int input;
  char happened[2048];
  char next[1024];
};

struct Event {
  /// 0: a request; 1: the client is gone.
  int gone;
  uint64_t client;
  uint64_t id;
  Text header;
  const void* body;
  size_t body_bytes;
  void* room;
  size_t room_bytes;
};

using Server = void*;
using Client = void*;
using Call = void*;

/// Functions that can fail return 0 and fill `trouble`; none throws. Only one thread at a time may call a server's
/// functions; the same holds for a client and its calls.
struct Functions {
  int version;
  /// "gRPC 1.51.1".
  const char* (*library)();

  int (*serve)(const Options* options, Server* server, int* port, Trouble* trouble);
  /// Waits for the next event. Returns 0 after `timeout_ms` without one. The event's memory is valid until its reply.
  int (*next)(Server server, int64_t timeout_ms, Event* event);
  /// Sends the header, and the first `body_bytes` of the request's room, at most all, as the body.
  void (*reply)(Server server, uint64_t id, Text header, size_t body_bytes);
  void (*stop)(Server server);

  /// Retries for `timeout_ms`.
  int (*connect)(const Options* options, int64_t timeout_ms, Client* client, Trouble* trouble);
  /// `body` and `room` are not accessed after wait() or close().
  Call (*call)(Client client, Text header, const void* body, size_t body_bytes, void* room, size_t room_bytes);
  /// The header is valid until drop().
  int (*wait)(Call call, int64_t timeout_ms, Text* header, Trouble* trouble);
  /// Waits for at most `timeout_ms` and does not break the connection. Returns done().
  int (*wait_for)(Call call, int64_t timeout_ms);
  int (*done)(Call call);
  void (*drop)(Call call);
  void (*count)(Client client, int64_t* sent, int64_t* received);
  void (*close)(Client client);
};

/// The only symbol that the module exports.
constexpr const char* kEntryPoint = "trireme_grpc_functions";
using EntryPoint = const Functions* (*)();

} // namespace trireme::rpc::grpc
