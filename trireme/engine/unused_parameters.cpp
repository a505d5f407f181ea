#include <trireme/engine/unused_parameters.h>

#include <torch/types.h>

#include <algorithm>

namespace trireme::engine {

UnusedParameters::UnusedParameters(const Parts& parts) : parts_(parts) {
  for (const auto& buffer : parts_.buffers.trained) {
    std::vector<bool>& flags = unused_.emplace_back();
    for (int64_t i = 0; i < buffer->count(); ++i) {
      flags.push_back(!buffer->was_used(i));
    }
    lacks_some_ = lacks_some_ || std::find(flags.begin(), flags.end(), true) != flags.end();
  }
}

UnusedParameters::Flags UnusedParameters::everywhere(double ranks_that_lack_some) const {
  const parallel::GradientSync& sync = *parts_.agreement.sync;
  if (!asks() || ranks_that_lack_some < (parts_.agreement.several_reduce_groups ? 1 : sync.step_group().size())) {
    return {};
  }
  Flags unused = unused_;
  for (size_t b = 0; b < unused.size(); ++b) {
    const comm::Group& ranks =
        parts_.steps_together() ? sync.groups().of(*parts_.buffers.trained[b]) : sync.step_group();
    std::vector<bool>& flags = unused[b];
    at::Tensor used = torch::zeros({std::ssize(flags)}, torch::kInt64);
    for (int64_t i = 0; i < std::ssize(flags); ++i) {
      used[i] = flags[i] ? 0 : 1;
    }
    ranks.all_reduce(used, comm::ReduceOp::max, "used parameters").wait();
    for (int64_t i = 0; i < std::ssize(flags); ++i) {
      flags[i] = used[i].item<int64_t>() == 0;
    }
  }
  return unused;
}

} // namespace trireme::engine
