// Values of a FlatOptimizer: masters that follow parameters, and reading or changing parameters and states together.
#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::optim {
namespace {

constexpr int64_t kRefreshed = 1 << 20; // elements of masters at a time: comparing takes 11 bytes for each beside them

} // namespace

void FlatOptimizer::follow_first_values() {
  if (steps_ == 0) {
    refresh_masters();
  }
}

void FlatOptimizer::refresh_masters() {
  for (const Shard& shard : shards_) {
    for (int64_t bucket = 0; bucket < std::ssize(shard.segments); ++bucket) {
      refresh_master(shard, bucket);
    }
  }
}

void FlatOptimizer::refresh_master(const Shard& shard, int64_t bucket) {
  if (!shard.has_master[bucket]) {
    return;
  }
  const torch::NoGradGuard no_grad;
  with_states(shard, bucket, true, [&](const BucketStates& states) {
    const at::Tensor all = shard.buffer->owned_data(bucket, owned(shard, bucket)).to(states.master.device());
    for (int64_t begin = 0; begin < all.numel(); begin += kRefreshed) {
      const int64_t end = std::min(all.numel(), begin + kRefreshed);
      const at::Tensor data = all.slice(0, begin, end);
      at::Tensor master = states.master.slice(0, begin, end);
      master.copy_(torch::where(master.to(data.scalar_type()) == data, master, data.to(torch::kFloat32)));
    }
  });
}

void FlatOptimizer::with_values(int64_t buffer, int64_t bucket, Access access,
                                const std::function<void(const Values&)>& f) {
  const torch::NoGradGuard no_grad;
  follow_first_values();
  const bool writes_parameters = access == Access::write || access == Access::write_all;
  const bool writes_states = access == Access::write_states || access == Access::write_all;
  const bool with_all = writes_states || access == Access::read_all;
  Shard& shard = shards_[buffer];
  const auto visit_coded = [&](const BucketStates& kept, size_t i,
                               const auto& visit) { // 8-bit states: f(codes, scales, where in the bucket)
    for (size_t s = 0; s < shard.segments[bucket].size(); ++s) {
      const Segment& segment = shard.segments[bucket][s];
      visit(kept.states[i].slice(0, segment.begin, segment.end), scales_of(shard, kept, i, bucket, s), segment);
    }
  };
  const auto visit = [&](const at::Tensor& data, const BucketStates& kept) {
    Values values{shard.has_master[bucket] ? kept.master : data, {}, {}};
    for (size_t i = 0; with_all && i < kept.states.size(); ++i) {
      values.initial.push_back(rule_->states()[i].initial);
      values.states.push_back(kept.states[i]);
      if (!kept.scales.empty()) {
        at::Tensor& decoded = values.states.back() = torch::zeros_like(kept.states[i], torch::kFloat32);
        visit_coded(kept, i, [&](const at::Tensor& codes, const at::Tensor& scales, const Segment& segment) {
          decoded.slice(0, segment.begin, segment.end)
              .copy_(decode_states(codes, scales, rule_->states()[i].is_signed));
        });
      }
    }
    f(values);
    if (shard.has_master[bucket] && writes_parameters) {
      at::Tensor(data).copy_(kept.master);
    }
    for (size_t i = 0; writes_states && !kept.scales.empty() && i < values.states.size(); ++i) {
      visit_coded(kept, i, [&](const at::Tensor& codes, const at::Tensor& scales, const Segment& segment) {
        encode_states(values.states[i].slice(0, segment.begin, segment.end), codes, scales,
                      rule_->states()[i].is_signed);
      });
    }
  };
  if (!writes_parameters) {
    with_states(shard, bucket, writes_states,
                [&](const BucketStates& kept) { visit(shard.buffer->owned_data(bucket, owned(shard, bucket)), kept); });
    return;
  }
  shard.buffer->modify_owned_data(bucket, owned(shard, bucket), [&](const at::Tensor& data) {
    with_states(shard, bucket, true, [&](const BucketStates& kept) { visit(data, kept); });
  });
}

} // namespace trireme::optim
