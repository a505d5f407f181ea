#pragma once

#include <trireme/base/error.h>
#include <trireme/parallel/server/requests.h>
#include <trireme/parallel/server/shard.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::parallel::server {

/// How a server answers: with its clock, and the values of its shard.
class Replies {
 protected:
  explicit Replies(rpc::Server& server) : server_(server) {}

  void answer(const Waiting& waiting, nlohmann::json header) {
    header["clock"] = clock_;
    server_.reply(waiting.event.id, header.dump());
  }
  void answer_with_values(const Waiting& waiting, nlohmann::json header) {
    if (waiting.event.room.size() == static_cast<size_t>(shard_->share().bytes)) {
      shard_->get_values(waiting.event.room);
      answer(waiting, std::move(header));
    } else {
      refuse(waiting, concat("room for ", waiting.event.room.size(), " bytes of values, and there are ", shard_->share().bytes));
    }
  }
  void refuse(const Waiting& waiting, const std::string& why) {
    answer(waiting, {{"status", "refused"}, {"error", why}});
  }
  /// Errors: InputError for a body that is not as long as the values.
  void check_body(const Waiting& waiting) const {
    if (waiting.event.body.size() != static_cast<size_t>(shard_->share().bytes)) {
      throw InputError("server", concat("a body of ", waiting.event.body.size(), " bytes, and a share has ", shard_->share().bytes));
    }
  }

  rpc::Server& server_;
  std::optional<Shard> shard_; // from the first join on
  int64_t clock_ = 0; // updates of the values
};

} // namespace trireme::parallel::server
