#pragma once

#include <trireme/bucket/flatten.h>
#include <trireme/comm/group.h>
#include <trireme/zero/early_shards.h>
#include <trireme/zero/options.h>
#include <trireme/zero/parameter_coordinator.h>
#include <trireme/zero/unit.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::zero {

/// The units of a model: which parameters are gathered together, and how they come into the flat buffers without any
/// rank ever holding the whole model.
class ModelUnits {
 public:
  /// The modules of `model` that are Sharded.
  static ModelUnits of(torch::nn::Module& model);
  /// Adds a module, perhaps with its parameters sharded already, and its tiles.
  void add(torch::nn::Module& module, std::unique_ptr<EarlyShards> early = nullptr, Unit* unit = nullptr);

  /// Decides which small parameters stay whole, as the options say. The ranks of `tensor`, whose parts of a parameter
  /// may differ in size, decide the same, by the largest, and so does the coordinator. Collective over them.
  void choose(const ZeroOptions& options, const comm::Group& tensor);
  /// The unit that a parameter is gathered with; bucket::TensorInfo::kNoUnit: it stays whole.
  int64_t unit_of(const at::Tensor& parameter) const;
  /// Elements that belong to a unit.
  int64_t sharded_elements() const;

  /// Makes all parameters whole again that were sharded early, for the stages that keep them so; once they lie
  /// elsewhere, drop_early_shards().
  void make_whole();
  void drop_early_shards();
  /// Makes the values of bucket `b`, which are there, the same on all ranks that have them.
  using Agree = std::function<void(bucket::FlatParameters& buffer, int64_t b)>;
  /// Moves the parameters unit by unit into `buffers`, which were made with unit_of(), and calls `agree`, unless it is
  /// null, on each bucket before it is sharded. From then on `coordinator` looks after them. Collective, as `agree` is.
  void move_into(const std::vector<bucket::FlatParameters*>& buffers, const Agree& agree,
                 const std::shared_ptr<ParameterCoordinator>& coordinator);

 private:
  struct Item {
    torch::nn::Module* module;
    std::unique_ptr<EarlyShards> early;
    Unit* unit;                         // null: a layer of a list
    std::vector<at::Tensor> parameters; // that no earlier one has
    std::optional<size_t> within;       // of a tile: the unit that it is in
  };

  void add_one(torch::nn::Module& module, std::unique_ptr<EarlyShards> early, Unit* unit, std::optional<size_t> within);
  void make_whole(Item& item);
  static void join(Item& item, const std::shared_ptr<ParameterCoordinator>& coordinator);

  std::vector<Item> items_;
  std::map<const void*, int64_t> unit_of_; // by TensorImpl
  std::map<const void*, int64_t> sizes_;   // of parameters on the rank that has most of each
};

} // namespace trireme::zero
