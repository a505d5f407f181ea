#pragma once

#include <trireme/bucket/flatten.h>
#include <trireme/parallel/data/reduce_groups.h>
#include <trireme/zero/early_shards.h>
#include <trireme/zero/options.h>
#include <trireme/zero/parameter_coordinator.h>
#include <trireme/zero/unit.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::zero {

/// The units of a model: which parameters are gathered together, and how they come into the flat buffers without any rank
/// ever holding the whole model.
class ModelUnits {
 public:
  /// The modules of `model` that are Sharded.
  static ModelUnits of(torch::nn::Module& model);
  /// Adds a module, perhaps with its parameters sharded already.
  void add(torch::nn::Module& module, std::unique_ptr<EarlyShards> early = nullptr, Unit* unit = nullptr);

  /// Decides which small parameters stay whole, as the options say.
  void choose(const ZeroOptions& options);
  /// The unit that a parameter is gathered with; bucket::TensorInfo::kNoUnit: it stays whole.
  int64_t unit_of(const at::Tensor& parameter) const;
  /// Elements that belong to a unit.
  int64_t sharded_elements() const;

  /// Makes all parameters whole again that were sharded early, for the stages that keep them so; once they lie elsewhere,
  /// drop_early_shards().
  void make_whole();
  void drop_early_shards();
  /// Moves the parameters unit by unit into `buffers`, which were made with unit_of(); rank 0's values become everybody's when
  /// `broadcast`. From then on `coordinator` looks after them. Collective.
  void move_into(const std::vector<bucket::FlatParameters*>& buffers, const parallel::ReduceGroups& groups, bool broadcast,
                 const std::shared_ptr<ParameterCoordinator>& coordinator);

 private:
  struct Item {
    torch::nn::Module* module;
    std::unique_ptr<EarlyShards> early;
    Unit* unit; // null: a layer of a list
    std::vector<at::Tensor> parameters; // that no earlier one has
  };

  static void make_whole(Item& item);
  static void join(Item& item, const std::shared_ptr<ParameterCoordinator>& coordinator);

  std::vector<Item> items_;
  std::map<const void*, int64_t> unit_of_; // by TensorImpl
};

} // namespace trireme::zero
