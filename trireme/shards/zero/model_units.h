#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flatten.h>
#include <trireme/shards/zero/early_shards.h>
#include <trireme/shards/zero/options.h>
#include <trireme/shards/zero/parameter_coordinator.h>
#include <trireme/shards/zero/unit.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::zero {

/// The units of a model: groups of parameters that are gathered at a time. Moves them into the flat buffers without any
/// rank ever holding the full model.
class ModelUnits {
 public:
  /// The modules of `model` that are Sharded.
  static ModelUnits of(torch::nn::Module& model);
  /// Adds a module and its tiles; `early`: its parameters are sharded already.
  void add(torch::nn::Module& module, std::unique_ptr<EarlyShards> early = nullptr, Unit* unit = nullptr);

  /// Selects the small parameters that are not sharded, by `options`. The ranks of `tensor` may hold parts of different
  /// sizes; they and the coordinator decide by the largest. Collective over `tensor`.
  void choose(const ZeroOptions& options, const comm::Group& tensor);
  /// The unit that gathers a parameter; bucket::TensorInfo::kNoUnit: it is not sharded.
  int64_t unit_of(const at::Tensor& parameter) const;
  /// Elements that belong to a unit.
  int64_t sharded_elements() const;

  /// Gathers all parameters that were sharded early, for ZeRO stages below 3. Call drop_early_shards() once they have
  /// been copied.
  void make_whole();
  void drop_early_shards();
  /// Makes the values of bucket `b`, which must be gathered, the same on all ranks that have them.
  using Agree = std::function<void(bucket::FlatParameters& buffer, int64_t b)>;
  /// Moves the parameters unit by unit into `buffers`, which were made with unit_of(). Calls `agree`, unless null, on
  /// each bucket before it is sharded. `coordinator` then manages them. Collective, as `agree` is.
  void move_into(const std::vector<bucket::FlatParameters*>& buffers, const Agree& agree,
                 const std::shared_ptr<ParameterCoordinator>& coordinator);

 private:
  struct Item {
    torch::nn::Module* module;
    std::unique_ptr<EarlyShards> early;
    Unit* unit;                         // null: a layer of a list
    std::vector<at::Tensor> parameters; // without those of earlier items
    std::optional<size_t> within;       // index of the unit that holds this tile
  };

  void add_one(torch::nn::Module& module, std::unique_ptr<EarlyShards> early, Unit* unit, std::optional<size_t> within);
  void make_whole(Item& item);
  static void join(Item& item, const std::shared_ptr<ParameterCoordinator>& coordinator);

  std::vector<Item> items_;
  std::map<const void*, int64_t> unit_of_; // by TensorImpl
  std::map<const void*, int64_t> sizes_;   // of parameters, on the rank with the largest part
};

} // namespace trireme::zero
