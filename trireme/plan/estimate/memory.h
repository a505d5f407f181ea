#pragma once

#include <trireme/plan/estimate/stage_layouts.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Uses of memory.
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

/// The name in --json: "parameters", "optimizer_states", ...
const char* category_name(Category category);

/// A number with its formula, in symbols and with numbers: "4 F", "4 x 806656".
struct Item {
  std::string name;
  std::string formula = {};
  std::string numbers = {};
  int64_t bytes = 0;
  /// For traffic: the axis of the mesh, "pipe", "data" (for gradients with context), "context", "tensor" or
  /// "pipe+tensor". For moves: the way_name().
  std::string axis = {};
};

/// Memory of a rank during training. All ranks of a pipeline stage need the same.
struct StageMemory {
  int64_t stage = 0;
  /// Elements of the stage's parameters; of the flat buffer of the trained ones, with its gaps; and of the frozen ones,
  /// with the gaps of sharded ones.
  int64_t parameters = 0;
  int64_t flat = 0;
  int64_t frozen = 0;
  /// One for each of kCategories, in that order, in the memory where the model is. moves_of() has what offload moves.
  std::vector<Item> items;
  /// At the start, while trained parameters move into the flat buffers: two copies of them, no optimizer states, no
  /// activations.
  int64_t start = 0;

  const Item& item(Category category) const { return items[static_cast<size_t>(category)]; }
  /// Parameters, gradients, optimizer states and masters.
  int64_t model_states() const;
  /// All categories.
  int64_t training() const;
  /// The larger of start and training().
  int64_t peak() const;
  /// Baseline and data: in host memory also for ranks on a GPU.
  int64_t always_on_host() const;
  /// Peak in GPU memory, for ranks on a GPU.
  int64_t peak_on_device() const;
};

/// Resident memory of a rank after loading libtorch, joining its group and a small computation: code, thread pools,
/// allocator. Measured on 2 ranks with libtorch 2.13 for CPUs: 134 MB with a model of 15,000 parameters, and about 16
/// MB of work areas of matrix products once matrices have a usual size. With libtorch 2.13 for CUDA 13, on the CPU: 416
/// MB. A constant of the build, not of the run.
int64_t baseline_bytes();

/// Returns the memory of a rank of each pipeline stage. Errors: InputError if parts and layers do not fit each other.
std::vector<StageMemory> memory_of(const Run& run);
std::vector<StageMemory> memory_of(const StageLayouts& stages);

/// Bytes of a message between two stages with a tensor of this many bytes: it adds a header, and has a smallest size.
int64_t message_bytes(int64_t tensor_bytes);

} // namespace trireme::estimate
