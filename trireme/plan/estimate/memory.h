#pragma once

#include <trireme/plan/estimate/stage_layouts.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// What memory is for.
enum class Category {
  parameters,
  gradients,
  optimizer_states,
  masters,
  activations,
  communication_buffers,
  offload_buffers,
  data,
  baseline
};
inline constexpr Category kCategories[] = {
    Category::parameters,      Category::gradients,   Category::optimizer_states,
    Category::masters,         Category::activations, Category::communication_buffers,
    Category::offload_buffers, Category::data,        Category::baseline};

/// "parameters", "optimizer_states" and so on: what --json calls it.
const char* category_name(Category category);

/// A number with the formula that it comes from, in symbols and with numbers in them: "4 F", "4 x 806656".
struct Item {
  std::string name;
  std::string formula = {};
  std::string numbers = {};
  int64_t bytes = 0;
  /// Of traffic: the axis of the mesh along which it runs, "pipe", "data" (with context, for gradients), "context",
  /// "tensor" or "pipe+tensor"; of moves the way_name().
  std::string axis = {};
};

/// A rank's memory while it trains. All ranks of a pipeline stage need the same.
struct StageMemory {
  int64_t stage = 0;
  /// Numbers in the stage's parameters, and with the gaps of the flat buffer that they lie in.
  int64_t parameters = 0;
  int64_t flat = 0;
  /// One for each of kCategories, in that order: where the model is. What offload moves elsewhere is in moves_of().
  std::vector<Item> items;
  /// At the start parameters move into the flat buffers and are there twice, but neither optimizer states nor
  /// activations are.
  int64_t start = 0;

  const Item& item(Category category) const {
    return items[static_cast<size_t>(category)];
  }
  /// Parameters, gradients, optimizer states and masters.
  int64_t model_states() const;
  /// All categories.
  int64_t training() const;
  /// The largest moment of the run.
  int64_t peak() const;
  /// Baseline and data, which are the host's for ranks on a device too.
  int64_t always_on_host() const;
  /// The largest moment in a device's memory, for ranks that train on one.
  int64_t peak_on_device() const;
};

/// Resident memory of a rank that has loaded libtorch, joined its group and computed a little: code, thread pools,
/// allocator. Measured on 2 ranks with libtorch 2.13 for CPUs: 134 MB with a model of 15,000 parameters, and about 16
/// MB of work areas of the matrix products once matrices have a usual size. With libtorch 2.13 for CUDA 13, on the CPU:
/// 416 MB. A constant of the build, not of the run.
int64_t baseline_bytes();

/// Says what a rank of each pipeline stage needs. Errors: InputError when parts and layers do not fit each other.
std::vector<StageMemory> memory_of(const Run& run);
std::vector<StageMemory> memory_of(const StageLayouts& stages);

/// Bytes of a message between two stages that carries this many: a header before it, and a smallest size.
int64_t message_bytes(int64_t tensor_bytes);

} // namespace trireme::estimate
