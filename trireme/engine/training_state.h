#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/engine_impl.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::engine {

/// Everything of an engine that a checkpoint holds: which rank saves which part, and
/// how it is put back.
///
/// Tensor names: parameters and buffers as the module names them; "<state>/<parameter>" for the
/// optimizer ("exp_avg/fc1.weight"), "replica<number>/<state>/<parameter>" where each replica has its own;
/// "rng/cpu/<rank>" (random_state.h). Buffers are those of the first replica. Earlier versions also saved "order/...",
/// which is not read any more.
/// They do not depend on how many stages the model was cut into.
/// Source: the layout-free index follows the idea of PyTorch's distributed checkpoint.
class TrainingState {
 public:
  explicit TrainingState(Engine::Impl& engine);

  void save(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state,
            const checkpoint::SaveOptions& options);
  /// Engine::gather_model().
  std::shared_ptr<torch::nn::Module> gather_model();
  /// Returns the client state.
  nlohmann::json load(const std::filesystem::path& folder, const std::string& tag);
  /// What a replica that comes has of another one besides parameters and states of the optimizer. `buffers_are_shared`:
  /// its module buffers at every meeting.
  static parallel::Workers::Rest rest_of(Engine::Impl& engine, bool buffers_are_shared);

 private:
  /// Hands whole tensors to the ranks of a group so that each writes about the same number of bytes.
  class Balance {
   public:
    explicit Balance(const comm::Group& group);
    bool is_mine(int64_t bytes);

   private:
    int rank_;
    std::vector<int64_t> bytes_;
  };

  /// Refuses what has no one model to save now, and brings what is under way. `wanted`: by whom.
  void make_ready(const char* wanted);
  void for_each_buffer(const std::function<void(bucket::FlatParameters&)>& visit) const;
  /// The sharded parameters, by TensorImpl.
  std::map<const void*, const bucket::TensorInfo*> sharded() const;
  /// What this rank saves. Masters, states and sharded parameters are lent, a bucket at a time.
  std::vector<checkpoint::TensorShard> shards();
  /// Parameters and module buffers of it.
  std::vector<checkpoint::TensorShard> model_shards(std::vector<Balance>& balances);
  std::vector<Balance> balances() const;
  /// Names of this rank's modules, buffers, and second names of tensors: what a module of the whole model needs beside
  /// its tensors.
  nlohmann::json names_here() const;
  /// Whether this rank saves what all replicas have.
  bool has_first_copy(const bucket::TensorInfo& tensor) const;
  bool is_saved_here(const bucket::TensorInfo& tensor) const;
  /// Whether each replica saves such a state of the optimizer, because it steps by itself.
  bool is_of_each_replica(const std::string& state) const;
  /// Nothing where a checkpoint with this state() of the GradientSync has no tensors of it, or none that fit.
  nlohmann::json state(const nlohmann::json& client_state) const;
  /// What is not the same on replicas that step by themselves; and the state in `saved` with what this replica had.
  nlohmann::json state_of_replica() const;
  nlohmann::json own_state(const checkpoint::Checkpoint& saved) const;
  /// Refuses a checkpoint that lacks a tensor of some rank's model or optimizer, has it in another shape, or has
  /// parameters that no rank's model has: they would be lost with the next save. Collective; throws on every rank,
  /// before anything is loaded.
  void check_model(const checkpoint::Checkpoint& saved);
  /// The schedule, the loss scale and the place in the data. All of them, or an InputError and none.
  void load_positions(const nlohmann::json& state);
  void load_counts(const nlohmann::json& state);
  void take_positions(const nlohmann::json& state);
  void load_tensors(const checkpoint::Checkpoint& saved);
  void load_optimizer_state(const checkpoint::Checkpoint& saved, const std::string& state,
                            const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) const;
  const std::string& saved_name(const std::string& parameter) const;
  /// The name of the parameter of which `parameter` is a part or all.
  std::string whole_name(const std::string& parameter, const bucket::TensorInfo& tensor) const {
    return tensor.placement.whole_name(saved_name(parameter));
  }
  std::string whole_name(const bucket::TensorInfo& tensor) const {
    return whole_name(tensor.name, tensor);
  }
  bucket::TensorInfo info_of(const at::Tensor& tensor) const;

  Engine::Impl& engine_;
  std::map<const void*, const bucket::TensorInfo*> infos_; // of trained parameters
};

} // namespace trireme::engine
