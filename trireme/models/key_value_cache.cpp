#include <trireme/models/key_value_cache.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace trireme::models {

KeyValueCache::KeyValueCache(int64_t rows, int64_t capacity)
    : capacity_(capacity), lengths_(static_cast<size_t>(rows), 0) {}

void KeyValueCache::begin(const std::vector<int64_t>& lengths) {
  if (lengths.size() != lengths_.size()) {
    throw InputError("generate", concat("got ", lengths.size(), " prompts for a cache of ", rows(), " rows"));
  }
  for (const int64_t length : lengths) {
    if (length < 1 || length > capacity_) {
      throw InputError("generate", concat("a prompt has ", length, " tokens; the cache has room for 1 to ", capacity_));
    }
  }
  lengths_ = lengths;
  reads_prompts_ = true;
  positions_.reset();
  places_.reset();
  hidden_.clear();
}

void KeyValueCache::next() {
  for (int64_t& length : lengths_) {
    if (length == capacity_) {
      throw InputError("generate", concat("the cache is full: a text has ", capacity_, " tokens"));
    }
    ++length;
  }
  reads_prompts_ = false;
  positions_.reset();
  hidden_.clear();
}

at::Tensor KeyValueCache::positions(const at::Device& device) {
  if (!positions_.defined()) {
    positions_ = at::tensor(lengths_, at::kLong).sub_(1).to(device);
  }
  return positions_;
}

int64_t KeyValueCache::reach() const {
  return *std::ranges::max_element(lengths_);
}

void KeyValueCache::store(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  if (static_cast<size_t>(layer) >= layers_.size()) {
    layers_.resize(static_cast<size_t>(layer) + 1);
  }
  Layer& kept = layers_[static_cast<size_t>(layer)];
  if (!kept.k.defined()) { // zeros: 0 times what is there must be 0
    kept.k = at::zeros({k.size(0), k.size(1), capacity_, k.size(3)}, v.options());
    kept.v = at::zeros_like(kept.k);
  }
  kept.k.narrow(2, 0, k.size(2)).copy_(k);
  kept.v.narrow(2, 0, v.size(2)).copy_(v);
}

at::Tensor KeyValueCache::hidden(int64_t window, const at::Device& device) {
  const int64_t least = *std::ranges::min_element(lengths_);
  if (least == reach() && (window == 0 || window >= reach())) {
    return {};
  }
  at::Tensor& mask = hidden_[window];
  if (!mask.defined()) {
    const at::Tensor key = at::arange(reach(), at::TensorOptions(at::kLong).device(device));
    const at::Tensor query = positions(device).view({-1, 1, 1});
    mask = key > query;
    if (window > 0) {
      mask.logical_or_(key <= query - window);
    }
  }
  return mask;
}

at::Tensor KeyValueCache::attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& cos, const at::Tensor& sin, int64_t window) {
  const Layer& kept = layers_.at(static_cast<size_t>(layer));
  if (fused::has_kept_attention(q, kept.k)) {
    return fused::attend_to_kept(q, k, v, {kept.k, kept.v, lengths_}, cos, sin, window).to(v.scalar_type());
  }
  at::Tensor turned_q = q, turned_k = k;
  const at::Tensor place = positions(k.device());
  if (cos.defined()) { // each row has a position of its own: rows take the place of tokens
    const auto both =
        fused::rotate(q.transpose(0, 2), k.transpose(0, 2), cos.index_select(0, place), sin.index_select(0, place));
    turned_q = both.first.transpose(0, 2);
    turned_k = both.second.transpose(0, 2);
  }
  const at::Tensor slots = place.view({-1, 1, 1, 1}).expand(k.sizes());
  kept.k.scatter_(2, slots, turned_k.to(kept.k.scalar_type()));
  kept.v.scatter_(2, slots, v);
  return aten_attend(kept, turned_q.to(v.scalar_type()), window);
}

at::Tensor KeyValueCache::aten_attend(const Layer& kept, const at::Tensor& q, int64_t window) {
  const int64_t B = q.size(0), A = q.size(1), D = q.size(3), K = kept.k.size(1), S = reach();
  const auto read = [&](const at::Tensor& all) { return all.view({B * K, capacity_, D}).narrow(1, 0, S); };
  const at::Tensor queries = (q * (1 / std::sqrt(static_cast<double>(D)))).reshape({B * K, A / K, D});
  at::Tensor scores = at::bmm(queries.to(kept.k.scalar_type()), read(kept.k).transpose(1, 2)); // [B K, A / K, S]
  if (const at::Tensor mask = hidden(window, q.device()); mask.defined()) {
    scores.view({B, A, S}).masked_fill_(mask, -INFINITY);
  }
  const at::Tensor weights = at::softmax(scores, -1, at::kFloat).to(scores.scalar_type());
  return at::bmm(weights, read(kept.v)).view({B, A, 1, D});
}

bool KeyValueCache::has_padding() const {
  return reads_prompts_ && std::ranges::adjacent_find(lengths_, std::not_equal_to()) != lengths_.end();
}

at::Tensor KeyValueCache::places(const at::Device& device) {
  if (!places_.defined()) {
    std::vector<at::Tensor> rows;
    for (int64_t row = 0; row < this->rows(); ++row) {
      const int64_t begin = row * reach();
      rows.push_back(at::arange(begin, begin + lengths_[static_cast<size_t>(row)], at::TensorOptions(at::kLong)));
    }
    places_ = at::cat(rows).to(device);
  }
  return places_;
}

at::Tensor KeyValueCache::packed(const at::Tensor& x_BTH) {
  return has_padding() ? x_BTH.flatten(0, 1).index_select(0, places(x_BTH.device())).unsqueeze(0) : x_BTH;
}

at::Tensor KeyValueCache::padded(const at::Tensor& x_1NH) {
  if (!has_padding()) {
    return x_1NH;
  }
  const at::Tensor all = at::zeros({rows() * reach(), x_1NH.size(2)}, x_1NH.options());
  return all.index_copy_(0, places(x_1NH.device()), x_1NH.squeeze(0)).view({rows(), reach(), -1});
}

at::Tensor KeyValueCache::last_of(const at::Tensor& x) {
  if (!reads_prompts_) {
    return x;
  }
  if (!has_padding()) {
    return x.narrow(1, x.size(1) - 1, 1);
  }
  std::vector<int64_t> last(lengths_.size());
  std::partial_sum(lengths_.begin(), lengths_.end(), last.begin());
  return x.index_select(1, at::tensor(last, at::kLong).sub_(1).to(x.device())).transpose(0, 1);
}

} // namespace trireme::models
