// Values of a FlatOptimizer: masters that follow parameters; reading or changing parameters with their states.
#include <trireme/optim/flat_optimizer.h>

#include <ATen/ops/cat.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::optim {
namespace {

constexpr int64_t kRefreshed = 1 << 20; // elements of masters at a time: the comparison takes 11 more bytes per element

} // namespace

void FlatOptimizer::follow_first_values() {
  if (steps_ == 0) {
    refresh_masters();
  }
}

void FlatOptimizer::refresh_masters() {
  for (const Shard& shard : shards_) {
    for (const Chunk& chunk : shard.chunks) {
      refresh_master(shard, chunk);
    }
  }
}

void FlatOptimizer::refresh_master(const Shard& shard, const Chunk& chunk) {
  if (!shard.has_master[chunk.bucket]) {
    return;
  }
  const torch::NoGradGuard no_grad;
  with_states(shard, chunk, true, [&](const BucketStates& states) {
    const at::Tensor all = shard.buffer->owned_data(chunk.bucket, chunk.range).to(states.master.device());
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
  const std::span<const Chunk> chunks = shard.chunks_of(bucket);
  using Kept = std::vector<BucketStates>; // per chunk
  using Get = std::function<at::Tensor(const BucketStates&)>;
  const auto joined = [&](const Kept& kept, const Get& get) {
    std::vector<at::Tensor> parts;
    std::transform(kept.begin(), kept.end(), std::back_inserter(parts), get);
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  };
  const auto split = [&](const at::Tensor& values, const Kept& kept, const Get& get) {
    for (size_t k = 0; k < kept.size() && kept.size() > 1; ++k) {
      get(kept[k]).copy_(part_of(shard, chunks[k], values));
    }
  };
  // 8-bit states: calls visit(codes, scales, their part of the bucket's `values`).
  const auto visit_coded = [&](const Kept& kept, size_t i, const at::Tensor& values, const auto& visit) {
    for (size_t k = 0; k < kept.size(); ++k) {
      const at::Tensor part = part_of(shard, chunks[k], values);
      for (size_t s = 0; s < chunks[k].segments.size(); ++s) {
        const Segment& segment = chunks[k].segments[s];
        visit(kept[k].states[i].slice(0, segment.begin, segment.end), scales_of(chunks[k], kept[k], i, s),
              part.slice(0, segment.begin, segment.end));
      }
    }
  };
  const auto visit = [&](const at::Tensor& data, const Kept& kept) {
    const bool coded = !kept.front().scales.empty();
    const auto master = [](const BucketStates& one) { return one.master; };
    const auto state = [](size_t i) { return [i](const BucketStates& one) { return one.states[i]; }; };
    Values values{shard.has_master[bucket] ? joined(kept, master) : data, {}, {}};
    for (size_t i = 0; with_all && i < kept.front().states.size(); ++i) {
      values.initial.push_back(rule_->states()[i].initial);
      if (!coded) {
        values.states.push_back(joined(kept, state(i)));
        continue;
      }
      values.states.push_back(
          torch::zeros({owned(shard, bucket).numel()}, kept.front().states[i].options().dtype(torch::kFloat32)));
      visit_coded(kept, i, values.states.back(),
                  [&](const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& decoded) {
                    at::Tensor(decoded).copy_(decode_states(codes, scales, rule_->states()[i].is_signed));
                  });
    }
    f(values);
    if (shard.has_master[bucket] && writes_parameters) {
      split(values.parameters, kept, master);
      at::Tensor(data).copy_(values.parameters);
    }
    for (size_t i = 0; writes_states && i < values.states.size(); ++i) {
      if (!coded) {
        split(values.states[i], kept, state(i));
        continue;
      }
      visit_coded(kept, i, values.states[i],
                  [&](const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& decoded) {
                    encode_states(decoded, codes, scales, rule_->states()[i].is_signed);
                  });
    }
  };
  if (!writes_parameters) {
    with_all_states(shard, bucket, writes_states,
                    [&](const Kept& kept) { visit(shard.buffer->owned_data(bucket, owned(shard, bucket)), kept); });
    return;
  }
  shard.buffer->modify_owned_data(bucket, owned(shard, bucket), [&](const at::Tensor& data) {
    with_all_states(shard, bucket, true, [&](const Kept& kept) { visit(data, kept); });
  });
}

} // namespace trireme::optim
