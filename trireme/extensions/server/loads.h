#pragma once

#include <trireme/extensions/server/together.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// Handles workers that load a checkpoint. Each worker that has loaded one announces it (`load`) before it pushes. The
/// server asks one of them to send the values (`set`), or another one if that worker is lost. It answers all when the
/// values are set. Pushes are held until then, because the load would overwrite their updates. A load that is already
/// set is not requested again.
class Loads : protected Together {
 protected:
  Loads(rpc::Server& server, const ParameterServerOptions& options) : Together(server, options) {}
  ~Loads() = default;

  void load(const PendingRequest& waiting);
  void set(const PendingRequest& waiting);
  /// True while a load is not finished; hold() what is pushed meanwhile.
  bool load_comes() const { return coming_.has_value(); }
  void hold(const PendingRequest& waiting) { held_.push_back(waiting); }
  /// Forgets this connection's requests: its worker is lost or has left.
  void without_loader(uint64_t client);
  /// Handles a held request as if it arrived now.
  virtual void take_again(const PendingRequest& waiting) = 0;
  /// Writes a snapshot.
  virtual void keep() = 0;

 private:
  void answer_loaded(const PendingRequest& waiting, int number);
  void ask_to_bring();
  void take_held();
  std::string why_not(const std::string& id) const;

  std::optional<Load> coming_;
  std::optional<uint64_t> asked_;       // connection of the worker that was asked to send the values
  std::vector<PendingRequest> loaders_; // other workers that have loaded it and wait for the answer
  std::vector<PendingRequest> held_;
};

} // namespace trireme::parallel::server
