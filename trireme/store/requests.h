#pragma once

#include <trireme/store/table.h>

#include <chrono>
#include <string>
#include <string_view>
#include <variant>

namespace trireme::store {

/// The reply is sent once the keys have come or the time is over.
struct Parked {
  std::chrono::milliseconds timeout;
};

/// What a connection leaves behind: done by the server when it ends, however it ends.
struct LastWill {
  std::string key;
  std::string value;
  /// A counter that is raised by one afterwards, "" for none.
  std::string counter;
};

using Outcome = std::variant<std::string, Parked, LastWill>;

/// Does what one request (without its length) asks for, on behalf of the connection `waiter`: the whole reply, or what
/// the server has to do first. Errors: BadMessage when it is no request.
Outcome carry_out(Table& table, uint64_t waiter, std::string_view request);

/// The reply to a wait.
std::string waited(bool all_there);

/// A reply with nothing in it.
std::string done();

} // namespace trireme::store
