#pragma once

#include <trireme/store/table.h>

#include <chrono>
#include <string>
#include <string_view>
#include <variant>

namespace trireme::store {

/// A wait: the reply is sent when the keys are set or the time is over.
struct Parked {
  std::chrono::milliseconds timeout;
};

/// The last will of a connection: the server executes it when the connection ends, for any reason.
struct LastWill {
  std::string key;
  std::string value;
  /// A counter to increase by one afterwards, "" for none.
  std::string counter;
  /// The server's reply when it has stored the will.
  std::string reply;
};

using Outcome = std::variant<std::string, Parked, LastWill>;

/// Executes one request (without its length) of the connection `waiter`. Returns the reply, or what the server must do
/// first. Errors: BadMessage if it is not a request.
Outcome carry_out(Table& table, uint64_t waiter, std::string_view request);

/// The reply to a wait.
std::string waited(bool all_there);

/// An empty reply.
std::string done();

} // namespace trireme::store
