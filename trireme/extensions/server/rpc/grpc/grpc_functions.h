#pragma once

#include <cstddef>
#include <cstdint>

/// What Trireme needs of gRPC, as plain functions.
///
/// libtorch exports symbols of a protobuf of its own, and a process must not mix two. So what includes gRPC's headers
/// is a shared module, without libtorch in it, that only processes with a "grpc://" address load (grpc_runtime.h); they
/// talk to it through this table. The module writes its few messages by itself (frames.h): neither it nor what it loads
/// has protobuf in it.
namespace trireme::rpc::grpc {

/// Changes when this file does.
constexpr int kInterfaceVersion = 3;

/// Bytes of somebody else's, not ended by a zero.
struct Text {
  const char* data;
  size_t size;
};

struct Options {
  /// HOST:PORT.
  Text target;
  /// A server's: a socket that listens there already, which stays the caller's, or -1.
  int listening;
  /// TLS; the rest of these are PEM, or empty: this side's certificate with its chain and its key, and those whom it
  /// trusts. A server that has `authority` asks for certificates of its clients.
  int tls;
  Text certificate;
  Text key;
  Text authority;
  /// 32 bytes, or none.
  Text secret;
  Text job;
  /// The other side is asked for a sign of life after so much silence, and is given up after so much more, in ms.
  int64_t ask_after_ms;
  int64_t give_up_after_ms;
};

/// Why something failed.
struct Trouble {
  /// 1: trying again would not change it.
  int input;
  char happened[2048];
  char next[1024];
};

struct Event {
  /// 0: a request, 1: the client is gone.
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

/// Functions that can fail return 0 after filling `trouble`. None throws. One thread at a time calls those of a server,
/// and one those of a client with its calls.
struct Functions {
  int version;
  /// "gRPC 1.51.1".
  const char* (*library)();

  int (*serve)(const Options* options, Server* server, int* port, Trouble* trouble);
  /// Waits for the next event. Returns 0 after `timeout_ms` without one. What the event points at is valid until its
  /// reply.
  int (*next)(Server server, int64_t timeout_ms, Event* event);
  /// Sends the header, and as a body the first `body_bytes` of the request's room, at most all.
  void (*reply)(Server server, uint64_t id, Text header, size_t body_bytes);
  void (*stop)(Server server);

  /// Tries for `timeout_ms`.
  int (*connect)(const Options* options, int64_t timeout_ms, Client* client, Trouble* trouble);
  /// `body` and `room` are not touched any more after wait() or close().
  Call (*call)(Client client, Text header, const void* body, size_t body_bytes, void* room, size_t room_bytes);
  /// The header is valid until drop().
  int (*wait)(Call call, int64_t timeout_ms, Text* header, Trouble* trouble);
  /// Waits for `timeout_ms` at most, and breaks nothing. Returns done().
  int (*wait_for)(Call call, int64_t timeout_ms);
  int (*done)(Call call);
  void (*drop)(Call call);
  void (*count)(Client client, int64_t* sent, int64_t* received);
  void (*close)(Client client);
};

/// The one symbol of the module.
constexpr const char* kEntryPoint = "trireme_grpc_functions";
using EntryPoint = const Functions* (*)();

} // namespace trireme::rpc::grpc
