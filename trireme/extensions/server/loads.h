#pragma once

#include <trireme/extensions/server/together.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// Checkpoints that workers load. Each worker that has loaded one says which (`load`) before it pushes anything; a
/// server asks one of them to bring it (`set`), another one when that one is gone, and answers all when it is there.
/// What is pushed meanwhile waits, so that no gradient is taken that the load would overwrite. A load that is there is
/// not taken again.
class Loads : protected Together {
 protected:
  Loads(rpc::Server& server, const ParameterServerOptions& options) : Together(server, options) {}
  ~Loads() = default;

  void load(const PendingRequest& waiting);
  void set(const PendingRequest& waiting);
  /// Whether a load is on its way; what is pushed then is to be held().
  bool load_comes() const {
    return coming_.has_value();
  }
  void hold(const PendingRequest& waiting) {
    held_.push_back(waiting);
  }
  /// The worker of this connection is gone or has left: it brings nothing any more.
  void without_loader(uint64_t client);
  /// Takes a request that was held, as if it came now.
  virtual void take_again(const PendingRequest& waiting) = 0;
  /// Writes a snapshot.
  virtual void keep() = 0;

 private:
  void answer_loaded(const PendingRequest& waiting, int number);
  void ask_to_bring();
  void take_held();
  std::string why_not(const std::string& id) const;

  std::optional<Load> coming_;
  std::optional<uint64_t> asked_;       // the connection of the worker that brings it
  std::vector<PendingRequest> loaders_; // that have it too, and wait for it
  std::vector<PendingRequest> held_;
};

} // namespace trireme::parallel::server
