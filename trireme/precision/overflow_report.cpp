#include <trireme/precision/overflow_report.h>

#include <trireme/base/text.h>
#include <trireme/device/absent_memory.h>

#include <ATen/ops/aminmax.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

namespace trireme::precision {
namespace {

using nlohmann::json;

NonFinite count(const std::string& name, const at::Tensor& tensor, int rank) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  return {name, rank, values.isnan().sum().item<int64_t>(), values.isinf().sum().item<int64_t>(), values.numel()};
}

json to_json(const std::vector<NonFinite>& found) {
  json out = json::array();
  for (const NonFinite& one : found) {
    out.push_back({one.name, one.nan, one.inf, one.numel});
  }
  return out;
}

std::vector<NonFinite> from_json(const json& list, int rank) {
  std::vector<NonFinite> out;
  for (const json& one : list) {
    out.push_back(
        {one[0].get<std::string>(), rank, one[1].get<int64_t>(), one[2].get<int64_t>(), one[3].get<int64_t>()});
  }
  return out;
}

std::vector<json> gather(const comm::Group& group, const json& here) {
  const std::string text = here.dump(-1, ' ', false, json::error_handler_t::replace);
  at::Tensor lengths = at::zeros({group.size()}, at::kLong);
  group.all_gather(lengths, at::full({1}, static_cast<int64_t>(text.size()), at::kLong), "overflow report sizes")
      .wait();
  const int64_t longest = lengths.max().item<int64_t>();
  at::Tensor mine = at::zeros({longest}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  at::Tensor all = at::zeros({group.size() * longest}, at::kByte);
  group.all_gather(all, mine, "overflow report").wait();
  std::vector<json> out;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* begin = all.const_data_ptr<uint8_t>() + rank * longest;
    out.push_back(json::parse(begin, begin + lengths[rank].item<int64_t>()));
  }
  return out;
}

} // namespace

// Checks the minimum and the maximum only: a NaN replaces both.
bool all_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_floating_point()) {
    return true;
  }
  const at::Tensor values = tensor.is_sparse() ? tensor._values().detach() : tensor.detach();
  if (values.numel() == 0) {
    return true;
  }
  const auto [least, most] = at::aminmax(values);
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

std::vector<NonFinite> find_non_finite(const NamedTensors& tensors, int rank, int64_t most) {
  std::vector<NonFinite> out;
  for (const auto& [name, tensor] : tensors) {
    if (static_cast<int64_t>(out.size()) >= most) {
      break;
    }
    if (tensor.defined() && tensor.numel() > 0 && device::has_memory(tensor) && !all_finite(tensor)) {
      out.push_back(count(name, tensor, rank));
    }
  }
  return out;
}

std::string describe_non_finite(const std::vector<NonFinite>& found) {
  std::vector<std::string> ranks;
  for (size_t i = 0; i < found.size(); ++i) {
    const NonFinite& one = found[i];
    std::vector<std::string> kinds;
    if (one.nan > 0) {
      kinds.push_back(concat(one.nan, " NaN"));
    }
    if (one.inf > 0) {
      kinds.push_back(concat(one.inf, " Inf"));
    }
    const std::string text = concat(one.name, " (", join(kinds, ", "), " of ", one.numel, ")");
    if (i > 0 && found[i - 1].rank == one.rank) {
      ranks.back() += ", " + text;
    } else {
      ranks.push_back(concat("rank ", one.rank, ": ", text));
    }
  }
  return join(ranks, "; ");
}

struct OverflowWatch::State {
  NamedTensors parameters;
  std::vector<unsigned> hooks; // one per parameter
  int64_t most = 3;

  // Backward on GPUs runs in threads of its own.
  std::mutex mutex;
  std::vector<NonFinite> seen;
  int64_t arrived = 0;
  int64_t bad = 0;

  void look(size_t i, const at::Tensor& gradient) {
    const bool fine = all_finite(gradient);
    const std::lock_guard lock(mutex);
    ++arrived;
    if (fine) {
      return;
    }
    ++bad;
    const std::string& name = parameters[i].first;
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const NonFinite& one) { return one.name == name; });
    if (!known && static_cast<int64_t>(seen.size()) < most) {
      seen.push_back(count(name, gradient, 0));
    }
  }
};

OverflowWatch::OverflowWatch(const NamedTensors& parameters, int64_t most) : state_(std::make_shared<State>()) {
  state_->most = most;
  std::set<const void*> taken; // a tied parameter has one gradient
  for (const auto& [name, parameter] : parameters) {
    if (parameter.defined() && parameter.requires_grad() && taken.insert(parameter.unsafeGetTensorImpl()).second) {
      state_->parameters.emplace_back(name, parameter);
    }
  }
  const std::weak_ptr<State> weak = state_; // the parameter owns the hook, and the state the parameter
  for (size_t i = 0; i < state_->parameters.size(); ++i) {
    state_->hooks.push_back(state_->parameters[i].second.register_hook([weak, i](const at::Tensor& gradient) {
      if (const auto state = weak.lock()) {
        state->look(i, gradient.detach());
      }
    }));
  }
}

OverflowWatch::~OverflowWatch() {
  for (size_t i = 0; i < state_->hooks.size(); ++i) {
    state_->parameters[i].second.remove_hook(state_->hooks[i]);
  }
}

std::string OverflowWatch::report(const comm::Group& group) {
  State& state = *state_;
  json here;
  {
    const std::lock_guard lock(state.mutex);
    const auto weights = state.bad > 0 ? find_non_finite(state.parameters, 0, state.most) : std::vector<NonFinite>{};
    here = {{"gradients", to_json(state.seen)},
            {"bad", state.bad},
            {"arrived", state.arrived},
            {"weights", to_json(weights)}};
    state.seen.clear();
    state.bad = 0;
    state.arrived = 0;
  }
  std::vector<NonFinite> gradients;
  std::vector<NonFinite> weights;
  std::vector<std::string> whole; // ranks on which no gradient is finite
  const std::vector<json> all = gather(group, here);
  for (size_t r = 0; r < all.size(); ++r) {
    const int rank = group.members()[r];
    const auto append = [rank](std::vector<NonFinite>& to, const json& list) {
      const std::vector<NonFinite> there = from_json(list, rank);
      to.insert(to.end(), there.begin(), there.end());
    };
    append(gradients, all[r]["gradients"]);
    append(weights, all[r]["weights"]);
    if (all[r]["bad"] > 0 && all[r]["bad"] == all[r]["arrived"]) {
      whole.push_back(concat(rank));
    }
  }
  if (gradients.empty()) {
    return "";
  }
  std::string out = "gradients that are not finite, in the order of backward: " + describe_non_finite(gradients) + ".";
  if (!weights.empty()) {
    return out + " Weights hold NaN or Inf already: " + describe_non_finite(weights) + ".";
  }
  if (!whole.empty()) {
    return out + concat(" All gradients of rank ", join(whole, ", "),
                        " are bad: forward or the loss was not finite there, or the scaled loss was too large.");
  }
  return out + " All gradients before the first one named were finite: the backward of that layer made the NaN or Inf.";
}

} // namespace trireme::precision
