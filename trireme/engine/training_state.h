#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/engine_impl.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::engine {

/// Saves and loads everything that a checkpoint of an engine contains, and decides which rank saves which part.
///
/// Tensor names: parameters and buffers as the module names them; "<state>/<parameter>" for the optimizer
/// ("exp_avg/fc1.weight"), "replica<number>/<state>/<parameter>" if each replica has its own; "rng/cpu/<rank>"
/// (random_state.h). They do not depend on the number of stages. Buffers are those of the first replica. Earlier
/// versions also saved "order/...", which is ignored.
///
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
  /// State that a joining replica needs from another one besides parameters and optimizer states. `buffers_are_shared`:
  /// its module buffers at every averaging step.
  static parallel::Workers::Rest rest_of(Engine::Impl& engine, bool buffers_are_shared);

 private:
  /// Assigns whole tensors to the ranks of a group so that each writes about the same number of bytes.
  class Balance {
   public:
    explicit Balance(const comm::Group& group);
    bool is_mine(int64_t bytes);

   private:
    int rank_;
    std::vector<int64_t> bytes_;
  };

  /// Finishes delayed updates before a save. Errors: InputError, with `wanted`, if there is no single model to save
  /// now.
  void make_ready(const char* wanted);
  void for_each_buffer(const std::function<void(bucket::FlatParameters&)>& visit) const;
  /// The sharded parameters, by TensorImpl.
  std::map<const void*, const bucket::TensorInfo*> sharded() const;
  /// Tensors that this rank saves. Masters, states and sharded parameters are provided bucket by bucket.
  std::vector<checkpoint::TensorShard> shards();
  /// Parameters and module buffers that this rank saves.
  std::vector<checkpoint::TensorShard> model_shards(std::vector<Balance>& balances);
  std::vector<Balance> balances() const;
  /// Names of this rank's modules and buffers, and second names of tensors: what a module of the whole model needs
  /// besides tensors.
  nlohmann::json names_here() const;
  /// Whether this rank saves what all replicas have.
  bool has_first_copy(const bucket::TensorInfo& tensor) const;
  bool is_saved_here(const bucket::TensorInfo& tensor) const;
  /// Whether each replica saves this optimizer state, because replicas step separately.
  bool is_of_each_replica(const std::string& state) const;
  /// The JSON of a checkpoint.
  nlohmann::json state(const nlohmann::json& client_state) const;
  /// State that differs among replicas that step separately; and the state in `saved`, with what this replica had.
  nlohmann::json state_of_replica() const;
  nlohmann::json own_state(const checkpoint::Checkpoint& saved) const;
  /// Refuses a checkpoint that lacks a tensor of some rank's model or optimizer, or has it in another shape. Also one
  /// with parameters that no rank's model has, which the next save would lose. Collective; throws on every rank, before
  /// anything is loaded.
  void check_model(const checkpoint::Checkpoint& saved);
  /// Loads the schedule, the loss scale and the data position. All of them, or InputError and none.
  void load_positions(const nlohmann::json& state);
  void load_counts(const nlohmann::json& state);
  void take_positions(const nlohmann::json& state);
  void load_tensors(const checkpoint::Checkpoint& saved);
  void load_optimizer_state(const checkpoint::Checkpoint& saved, const std::string& state,
                            const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) const;
  const std::string& saved_name(const std::string& parameter) const;
  /// Name of the whole parameter that `parameter` is, or is a part of.
  std::string whole_name(const std::string& parameter, const bucket::TensorInfo& tensor) const {
    return tensor.placement.whole_name(saved_name(parameter));
  }
  std::string whole_name(const bucket::TensorInfo& tensor) const { return whole_name(tensor.name, tensor); }
  bucket::TensorInfo info_of(const at::Tensor& tensor) const;

  Engine::Impl& engine_;
  std::map<const void*, const bucket::TensorInfo*> infos_; // of trained parameters
};

} // namespace trireme::engine
