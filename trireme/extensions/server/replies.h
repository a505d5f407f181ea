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

/// How a server answers: with its clock, and the values of its shard.
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
  /// All values, or, of the sparse pieces, what has changed since the version that the worker says it has.
  void answer_with_values(const PendingRequest& waiting, nlohmann::json header) {
    const auto have = waiting.header.find("have");
    const bool all = have == waiting.header.end() || !shard_->has_sparse();
    const Shard::Changes changes = all ? Shard::Changes() : shard_->changes_since(have->get<int64_t>());
    const auto bytes = static_cast<size_t>(all ? shard_->share().bytes : changes.layout.bytes);
    const size_t room = waiting.event.room.size();
    if (room < bytes || (all && room > bytes)) {
      return refuse(waiting, concat("room for ", room, " bytes of values, and there are ", bytes));
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
  /// To a gradient that came too late: it is dropped, and the worker goes on with these values.
  void answer_stale(const PendingRequest& waiting) {
    answer_with_values(waiting, {{"status", "stale"}, {"loss", number_in(waiting.header, "loss")}});
  }
  void refuse(const PendingRequest& waiting, const std::string& why) {
    answer(waiting, {{"status", "refused"}, {"error", why}});
  }
  /// Errors: InputError for a body that does not have the gradients that its header says.
  void check_gradients(const PendingRequest& waiting) const {
    shard_->check(waiting.event.body, counts_in(waiting.header));
  }
  /// Errors: InputError for a gradient whose answer, the values, has no room.
  void check_room(const PendingRequest& waiting) const {
    if (const size_t room = waiting.event.room.size(); std::cmp_less(room, shard_->share().bytes)) {
      throw InputError("server", concat("room for ", room, " bytes of values, and there are ", shard_->share().bytes));
    }
  }

  rpc::Server& server_;
  Workers workers_;
  std::optional<Shard> shard_; // from the first join on
  int64_t clock_ = 0;          // updates of the values, loads among them
  Load load_;                  // what they began with
  /// The first server's clock that these values belong to; absent: workers step alone, or a load did not say. Clocks of
  /// servers differ once one has lost updates.
  std::optional<int64_t> first_clock_ = 0;
};

} // namespace trireme::parallel::server
