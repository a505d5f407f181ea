#pragma once

#include <trireme/base/error.h>
#include <trireme/extensions/server/load.h>
#include <trireme/extensions/server/requests.h>
#include <trireme/extensions/server/shard.h>
#include <trireme/extensions/server/workers.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace trireme::parallel::server {

/// Builds a server's responses, with its clock and the values of its shard.
class Replies {
 protected:
  explicit Replies(rpc::Server& server) : server_(server) {}

  void answer(const PendingRequest& waiting, nlohmann::json header, size_t body_bytes = rpc::kWholeRoom) {
    header["clock"] = clock_;
    header["loads"] = load_.number;
    if (first_clock_) {
      header["first_clock"] = *first_clock_;
    }
    server_.reply(waiting.event.id, header.dump(), body_bytes);
  }
  /// Sends all values; or, of the sparse pieces, only rows that have changed since the version that the worker reports.
  void answer_with_values(const PendingRequest& waiting, nlohmann::json header) {
    const auto have = waiting.header.find("have");
    const bool all = have == waiting.header.end() || !shard_->has_sparse();
    const Shard::Changes changes = all ? Shard::Changes() : shard_->changes_since(have->get<int64_t>());
    const auto bytes = static_cast<size_t>(all ? shard_->share().bytes : changes.layout.bytes);
    const size_t room = waiting.event.room.size();
    if (room < bytes || (all && room > bytes)) {
      return refuse(waiting, concat("room for ", room, " bytes of values, but there are ", bytes));
    }
    header["first_worker"] = workers_.first();
    header["steps"] = shard_->steps();
    if (shard_->has_sparse()) {
      header["version"] = shard_->version();
    }
    if (all) {
      shard_->get_values(waiting.event.room);
    } else {
      header["rows"] = changes.counts;
      shard_->get_changes(waiting.event.room, changes);
    }
    answer(waiting, std::move(header), bytes);
  }
  /// Responds to a gradient that came too late: it is dropped, and the worker continues with these values.
  void answer_stale(const PendingRequest& waiting) {
    answer_with_values(waiting, {{"status", "stale"}, {"loss", number_in(waiting.header, "loss")}});
  }
  void refuse(const PendingRequest& waiting, const std::string& why) {
    answer(waiting, {{"status", "refused"}, {"error", why}});
  }
  /// Errors: InputError if the body does not have the size that its header describes.
  void check_gradients(const PendingRequest& waiting) const {
    shard_->check(waiting.event.body, counts_in(waiting.header));
  }
  /// Errors: InputError if the worker has no room for the response, the values.
  void check_room(const PendingRequest& waiting) const {
    if (const size_t room = waiting.event.room.size(); std::cmp_less(room, shard_->share().bytes)) {
      throw InputError("server", concat("room for ", room, " bytes of values, but there are ", shard_->share().bytes));
    }
  }

  rpc::Server& server_;
  Workers workers_;
  std::optional<Shard> shard_; // set by the first join
  int64_t clock_ = 0;          // number of updates of the values, including loads
  Load load_;                  // where the values started
  /// The clock of server 0 that these values belong to. Absent: workers step separately, or a load did not name it.
  /// Once a server has lost updates, its own clock differs from server 0's.
  std::optional<int64_t> first_clock_ = 0;
};

} // namespace trireme::parallel::server
