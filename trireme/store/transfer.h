#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>

namespace trireme::store {

enum class Transfer { done, late, ended };

/// Waits until a socket has one of `events` (of poll()). False after `deadline`.
bool wait_until_ready(int socket, short events, std::chrono::steady_clock::time_point deadline);

/// Sends or receives all bytes over a non-blocking socket; waits as needed.
Transfer send_all(int socket, std::string_view bytes, std::chrono::steady_clock::time_point deadline);
Transfer receive_all(int socket, char* buffer, size_t bytes, std::chrono::steady_clock::time_point deadline);

} // namespace trireme::store
