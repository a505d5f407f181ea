#include <trireme/engine/random_state.h>

#include <trireme/base/hash.h>
#include <trireme/base/log.h>

#include <ATen/Context.h>
#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <string>

namespace trireme::engine {
namespace {

std::string name_of(at::Device device, int rank) {
  return concat("rng/", c10::DeviceTypeName(device.type(), /*lower_case=*/true), '/', rank);
}

// Random numbers come from the CPU's generator and, on a GPU, also from the GPU's.
std::vector<at::Device> devices_with_generators(at::Device device) {
  return device.is_cpu() ? std::vector<at::Device>{at::kCPU} : std::vector<at::Device>{at::kCPU, device};
}

at::Tensor state_of(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The first tensor rank of this rank's replica and stage; all of them draw the same numbers.
int drawing_rank(const Parts& parts) {
  if (parts.ranks.tensor.size() == 1) {
    return parts.ranks.everyone.rank();
  }
  const std::vector<int>& all = parts.ranks.everyone.members();
  return static_cast<int>(std::find(all.begin(), all.end(), parts.ranks.tensor.members().front()) - all.begin());
}

// Different for different ranks, workers and steps.
uint64_t new_seed(const Parts& parts, int64_t step) {
  const uint64_t of_step =
      mix64(mix64(static_cast<uint64_t>(parts.settings.seed) + kMixStep) + static_cast<uint64_t>(step) + kMixStep);
  return of_step + static_cast<uint64_t>(parts.ranks.worker + drawing_rank(parts));
}

std::string words(const nlohmann::json& axes) {
  std::string out;
  for (const nlohmann::json& axis : axes) {
    out += concat(out.empty() ? "" : " x ", axis.at(0).get<std::string>(), ' ', axis.at(1).get<int>());
  }
  return out.empty() ? "one rank" : out;
}

} // namespace

nlohmann::json axes_in_use(const mesh::MeshShape& shape) {
  nlohmann::json axes = nlohmann::json::array();
  for (const mesh::Axis& axis : shape.axes()) {
    if (axis.size > 1) {
      axes.push_back({axis.name, axis.size});
    }
  }
  return axes;
}

std::vector<checkpoint::TensorShard> random_states(const Parts& parts) {
  std::vector<checkpoint::TensorShard> states;
  for (const at::Device device : devices_with_generators(parts.device())) {
    const at::Tensor state = state_of(device);
    states.push_back({name_of(device, parts.ranks.everyone.rank()), "rng", state.sizes().vec(), 0, state, {}, {}});
  }
  return states;
}

void seed_generators(const Parts& parts, int64_t step) {
  torch::manual_seed(new_seed(parts, step));
}

void continue_random_states(const Parts& parts, const checkpoint::Checkpoint& saved, int64_t step) {
  const nlohmann::json unsaid = saved.world_size() == 1 ? nlohmann::json::array() : nlohmann::json();
  const nlohmann::json axes = saved.state().value("mesh", unsaid);
  if (parts.ranks.worker > 0 ||
      axes != parts.ranks.axes) { // with workers or replicas in worlds of their own only the first one's are saved
    seed_generators(parts, step);
    if (axes != parts.ranks.axes) {
      log::info("the checkpoint was saved on ", axes.is_null() ? "an unknown mesh" : words(axes), ", this run has ",
                words(parts.ranks.axes), "; random generators are seeded anew from \"seed\", the step and the rank");
    }
    return;
  }
  const int rank = drawing_rank(parts);
  for (const at::Device device : devices_with_generators(parts.device())) {
    if (saved.has(name_of(device, rank))) {
      set_state(device, saved.read(name_of(device, rank)));
    } else { // saved on another kind of device
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_current_seed(new_seed(parts, step));
    }
  }
}

} // namespace trireme::engine
