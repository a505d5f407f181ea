#pragma once

#include <trireme/config/server_options.h>
#include <trireme/extensions/server/servers.h>
#include <trireme/shards/bucket/state_store.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/sync_factory.h>
#include <trireme/shards/data_parallel/workers.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// A worker of parameter servers: it sends gradients to servers, which step, and receives their values. The worker has
/// no masters and no optimizer states; a checkpoint fetches them, and a load sets them.
///
/// The data group has one rank: workers do not know each other, so one may end without the others. Gradients are sent
/// after backward. In synchronous modes loss and norm are those of all workers. In the other modes each worker has its
/// own, and clips and skips separately.
class ServerSync final : public GradientSync,
                         public StepExchange,
                         public SyncState,
                         private parallel::Workers,
                         private RemoteStates {
 public:
  ServerSync(ReduceGroups groups, const ServerOptions& options, WorkerOptions worker);
  ~ServerSync() override;

  parallel::Workers* workers() override { return this; }
  RemoteStates* remote_states() override { return this; }
  const StepAgreement& agreement() const override;
  StepExchange& step_exchange() override { return *this; }
  SyncState& sync_state() override { return *this; }

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override { buffers_ = buffers; }
  comm::Work gradients_ready(bucket::FlatParameters&, int64_t) override { return {}; }
  double scale() const override { return options_.together() ? 1.0 / static_cast<double>(members_) : 1; }

  void attach_optimizer(bucket::SteppedValues& values) override { values_ = &values; }
  void step_bucket(bucket::FlatParameters&, int64_t, const std::function<void()>&) override {}
  bool end_step(bool taken) override;
  double exposed_seconds() const override { return exposed_; }
  int64_t bytes_sent() const override { return servers_ ? servers_->bytes_sent() : 0; }
  void load_state(const nlohmann::json& state, int64_t steps) override;

 private:
  class Store;
  // Synchronous modes: the servers have the sums.
  class ServersAgreement final : public OwnGradientsAgreement {
   public:
    explicit ServersAgreement(ServerSync& sync) : sync_(sync) {}
    at::Tensor squared_norm(StepGradients& gradients, bool wanted) const override;
    LossAndNorm agree(const LossAndNorm& own) const override;

   private:
    ServerSync& sync_;
  };

  void attach_rest(Rest rest) override { rest_ = std::move(rest); }
  int64_t step() const override { return servers_ && servers_->loads() ? servers_->step() : 0; }
  void begin_at(int64_t step) override;
  int64_t after_step() override;
  bool is_first() override { return servers_ == nullptr || servers_->first_worker() == worker_.worker; }
  std::string_view axis() const override { return "server"; }
  std::unique_ptr<bucket::StateStore> make_store() override;
  void connect(const std::function<Parameter(const bucket::TensorInfo&)>& of, const nlohmann::json& optimizer,
               const std::vector<std::string>& arrays) override;
  void fetch() override;
  int64_t loaded(const std::string& id, int64_t step) override;

  void begin();
  void check_beginning() const;
  at::Tensor value(int64_t parameter) const;
  at::Tensor gradient(int64_t parameter) const;

  ServersAgreement on_servers_{*this};
  OwnGradientsAgreement on_own_gradients_;
  ServerOptions options_;
  WorkerOptions worker_;
  Rest rest_;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<std::pair<int64_t, int64_t>> places_; // buffer of each parameter, and index in it
  bucket::SteppedValues* values_ = nullptr;
  std::unique_ptr<Servers> servers_;
  std::vector<std::string> arrays_;
  Store* store_ = nullptr; // owned by the engine's optimizer
  int64_t taken_ = 0;      // clock up to which after_step() has reported
  bool loads_ = false;     // has loaded a checkpoint that the servers do not have yet
  bool begun_ = false;     // has values and a matching step
  int64_t members_ = 1;
  double exposed_ = 0;
};

/// Makes InitializeOptions::sync for a worker of parameter servers. `options` are those of its configuration. Its world
/// has one rank.
SyncFactory worker_sync(const ServerOptions& options, WorkerOptions worker);

} // namespace trireme::parallel::server
