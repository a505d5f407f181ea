#include <trireme/data/sampler.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

namespace trireme::data {
namespace {

constexpr const char* kKind = "distributed_sampler";
constexpr int64_t kMost = int64_t{1} << 31; // so that per_rank * replicas cannot overflow

int64_t global_size(int64_t per_rank, int64_t replicas) {
  if (per_rank < 1 || per_rank > kMost) {
    throw InputError("data", concat("a micro-batch has at least 1 sample and at most ", kMost, ", got ", per_rank));
  }
  return per_rank * replicas;
}

const nlohmann::json& member(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end()) {
    throw InputError("data", concat("the saved data position has no \"", key, '"'), "It is damaged or of another version.");
  }
  return *found;
}

int64_t integer(const nlohmann::json& state, const char* key) {
  const auto& value = member(state, key);
  if (!value.is_number_integer()) {
    throw InputError("data", concat("the saved data position's \"", key, "\" is ", value.dump(), ", a whole number is needed"));
  }
  return value.get<int64_t>();
}

} // namespace

DistributedSampler::DistributedSampler(int64_t size, SamplerOptions options) : size_(size), options_(options) {
  if (size < 1) {
    throw InputError("data", "there are no samples to read");
  }
  if (options.replicas < 1 || options.replicas > kMost || options.rank < 0 || options.rank >= options.replicas) {
    throw InputError("data", concat("rank ", options.rank, " is not one of ", options.replicas, " replicas"),
                     "rank counts from 0 and stays below replicas.");
  }
}

std::optional<DistributedSampler::MicroBatch> DistributedSampler::next(int64_t per_rank) {
  const int64_t start = position_;
  if (!skip(per_rank)) {
    return std::nullopt;
  }
  MicroBatch result;
  result.indices.reserve(static_cast<size_t>(per_rank));
  for (int64_t k = 0; k < per_rank; ++k) {
    const int64_t position = start + options_.rank + k * options_.replicas;
    result.samples += position < size_;
    result.indices.push_back(at(position % size_));
  }
  return result;
}

bool DistributedSampler::skip(int64_t per_rank) {
  if (micro_batches_left(per_rank) == 0) {
    return false;
  }
  position_ = std::min(size_, position_ + global_size(per_rank, options_.replicas));
  return true;
}

void DistributedSampler::start_epoch(int64_t epoch) {
  if (epoch != epoch_) {
    order_.reset();
  }
  epoch_ = epoch;
  position_ = 0;
}

int64_t DistributedSampler::micro_batches_per_epoch(int64_t per_rank) const {
  return micro_batches_from(0, per_rank);
}

int64_t DistributedSampler::micro_batches_left(int64_t per_rank) const {
  return micro_batches_from(position_, per_rank);
}

int64_t DistributedSampler::micro_batches_from(int64_t position, int64_t per_rank) const {
  const int64_t together = global_size(per_rank, options_.replicas);
  const int64_t left = size_ - position;
  return options_.drop_last ? left / together : (left + together - 1) / together;
}

int64_t DistributedSampler::at(int64_t position) {
  if (!options_.shuffle) {
    return position;
  }
  if (order_ == nullptr) {
    order_ = std::make_shared<const std::vector<int64_t>>(permutation(size_, options_.seed, epoch_));
  }
  return (*order_)[static_cast<size_t>(position)];
}

nlohmann::json DistributedSampler::state() const {
  return {{"kind", kKind},     {"size", size_},   {"shuffle", options_.shuffle},
          {"seed", options_.seed}, {"epoch", epoch_}, {"position", position_}};
}

void DistributedSampler::load_state(const nlohmann::json& state) {
  if (!state.is_object() || member(state, "kind") != kKind) {
    throw InputError("data", "the saved data position was not written by this sampler");
  }
  const auto differs = [](const char* what, const auto& saved, const auto& here) {
    throw InputError("data", concat("the saved data position is for ", what, ' ', saved, ", this run has ", here),
                     "Use the same data and order as before, or start without --resume.");
  };
  const int64_t size = integer(state, "size");
  const int64_t seed = integer(state, "seed");
  const int64_t epoch = integer(state, "epoch");
  const int64_t position = integer(state, "position");
  const auto& shuffle = member(state, "shuffle");
  if (size != size_) {
    differs("a dataset size of", size, size_);
  }
  if (shuffle != options_.shuffle) {
    differs("shuffle:", shuffle.dump(), options_.shuffle ? "true" : "false");
  }
  if (options_.shuffle && seed != options_.seed) {
    differs("the seed", seed, options_.seed);
  }
  if (position < 0 || position > size_ || epoch < 0) {
    throw InputError("data", concat("the saved data position, epoch ", epoch, " sample ", position,
                                    ", is outside the ", size_, " samples"));
  }
  start_epoch(epoch);
  position_ = position;
}

std::vector<int64_t> permutation(int64_t size, int64_t seed, int64_t epoch) {
  const auto low = [](int64_t value) { return static_cast<uint32_t>(static_cast<uint64_t>(value)); };
  const auto high = [](int64_t value) { return static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32); };
  std::seed_seq words{low(seed), high(seed), low(epoch), high(epoch)};
  std::mt19937_64 generator(words);
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  for (size_t left = order.size(); left > 1; --left) {
    // Numbers beyond `left` are drawn again: a remainder would favour the small ones, and
    // std::uniform_int_distribution differs between libraries.
    const uint64_t mask = std::bit_ceil(left) - 1;
    uint64_t chosen = generator() & mask;
    while (chosen >= left) {
      chosen = generator() & mask;
    }
    std::swap(order[left - 1], order[chosen]);
  }
  return order;
}

} // namespace trireme::data
