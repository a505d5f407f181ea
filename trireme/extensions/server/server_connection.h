#pragma once

#include <trireme/extensions/server/servers.h>

namespace trireme::parallel::server {

/// A worker may wait for all others, or for a checkpoint of the first one. Whether the other side lives is the
/// transport's to notice.
inline constexpr std::chrono::hours kLongestAnswer{12};

/// One server, and what travels to it and back.
struct Servers::Connection {
  int number = 0;
  std::string address;
  std::unique_ptr<rpc::Client> client;
  Share share;
  std::vector<std::string> arrays;
  int64_t array_bytes = 0;
  int64_t clock = 0;
  std::optional<int64_t> first_clock; // the first server's, of the same values, if this server knows it
  bool initialized = false;
  bool joined = false; // over this connection or an earlier one
  int64_t loads = 0;   // that the server's values have seen
  size_t longest = 0;  // body
  std::shared_ptr<std::byte[]> gradients;
  std::shared_ptr<std::byte[]> values;
  std::vector<int64_t> counts; // of the gradients: rows of each sparse piece
  size_t gradient_bytes = 0;
  std::optional<int64_t> version;    // of the values that this worker has, where pieces are sparse
  std::shared_ptr<rpc::Call> call;   // on its way
  std::shared_ptr<rpc::Call> pushed; // answered with the values, or, to one worker, when the sum is there
  int64_t pushed_clock = 0;          // of what was pushed last
  int64_t pushed_step = 0;           // the first server's clock then
  bool withdrawn = false;
  std::optional<nlohmann::json> answer; // to it
  bool has_step = false;                // its values after the step have come

  size_t bytes() const {
    return static_cast<size_t>(share.bytes);
  }
  std::span<const std::byte> of_gradients() const {
    return {gradients.get(), gradient_bytes};
  }
  std::span<std::byte> room_for_values() const {
    return {values.get(), version ? longest : bytes()};
  }
  bool has_sparse() const {
    return share.dense_bytes < share.bytes;
  }
  /// Whether a request that belongs to the step is on its way, or is to be sent.
  bool awaits_answer() const {
    return !has_step && (!answer || call);
  }
  /// Whether this worker is asked to say how the server steps.
  bool asks_to_commit() const {
    return answer && answer->at("status") == "commit";
  }
};

} // namespace trireme::parallel::server
