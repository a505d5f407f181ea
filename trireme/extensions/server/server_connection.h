#pragma once

#include <trireme/extensions/server/servers.h>

namespace trireme::parallel::server {

/// A worker may wait for all others, or for the first one's checkpoint. The transport detects a peer that is lost.
inline constexpr std::chrono::hours kLongestAnswer{12};

/// One server, and the buffers and requests of its connection.
struct Servers::Connection {
  int number = 0;
  std::string address;
  std::unique_ptr<rpc::Client> client;
  Share share;
  std::vector<std::string> arrays;
  int64_t array_bytes = 0;
  int64_t clock = 0;
  std::optional<int64_t> first_clock; // server 0's clock for the same values, if this server knows it
  bool initialized = false;
  bool joined = false; // over this connection or an earlier one
  int64_t loads = 0;   // number of loads that the server's values include
  size_t longest = 0;  // largest body, in bytes
  std::shared_ptr<std::byte[]> gradients;
  std::shared_ptr<std::byte[]> values;
  std::vector<int64_t> counts; // rows of each sparse piece in `gradients`
  size_t gradient_bytes = 0;
  std::optional<int64_t> version;    // of this worker's values, if pieces are sparse
  std::shared_ptr<rpc::Call> call;   // in flight
  std::shared_ptr<rpc::Call> pushed; // answered with the values; for one worker, when the sum is ready
  int64_t pushed_clock = 0;          // clock of the last push
  int64_t pushed_step = 0;           // server 0's clock then
  bool withdrawn = false;
  std::optional<nlohmann::json> answer; // to the push
  bool has_step = false;                // its values after the step have arrived

  size_t bytes() const { return static_cast<size_t>(share.bytes); }
  std::span<const std::byte> of_gradients() const { return {gradients.get(), gradient_bytes}; }
  std::span<std::byte> room_for_values() const { return {values.get(), version ? longest : bytes()}; }
  bool has_sparse() const { return share.dense_bytes < share.bytes; }
  /// True while a request of the step is in flight or must still be sent.
  bool awaits_answer() const { return !has_step && (!answer || call); }
  /// True if this worker is asked how the server steps.
  bool asks_to_commit() const { return answer && answer->at("status") == "commit"; }
};

} // namespace trireme::parallel::server
