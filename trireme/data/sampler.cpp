#include <trireme/data/sampler.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>

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
    throw InputError("data", concat("a micro-batch must have from 1 to ", kMost, " samples, got ", per_rank));
  }
  return per_rank * replicas;
}

const nlohmann::json& member(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end()) {
    throw InputError("data", concat("the saved data position has no \"", key, '"'),
                     "It is damaged or of another version.");
  }
  return *found;
}

int64_t integer(const nlohmann::json& state, const char* key) {
  const auto& value = member(state, key);
  if (!value.is_number_integer()) {
    throw InputError("data",
                     concat("the saved data position's \"", key, "\" must be a whole number, got ", value.dump()));
  }
  return value.get<int64_t>();
}

} // namespace

DistributedSampler::DistributedSampler(int64_t size, SamplerOptions options) : size_(size), options_(options) {
  if (size < 1) {
    throw InputError("data", "there are no samples to read");
  }
  if (options.replicas < 1 || options.replicas > kMost || options.rank < 0 || options.rank >= options.replicas) {
    throw InputError("data", concat("rank ", options.rank, " is outside of ", options.replicas, " replicas"),
                     "Ranks count from 0 to replicas - 1.");
  }
  if (options_.order) {
    options_.shuffle = false;
    order_ = own_order(epoch_);
    if (*own_order(epoch_) != *order_) {
      throw InputError("data",
                       "the program's own order of the samples differs between two calls, so no checkpoint "
                       "could continue it",
                       "Make it depend only on the epoch and a fixed seed, like data::permutation().");
    }
  }
}

std::shared_ptr<const std::vector<int64_t>> DistributedSampler::own_order(int64_t epoch) const {
  auto order = std::make_shared<const std::vector<int64_t>>(options_.order(epoch));
  const auto wrong =
      std::find_if(order->begin(), order->end(), [this](int64_t sample) { return sample < 0 || sample >= size_; });
  if (wrong != order->end()) {
    throw InputError("data", concat("the program's own order of epoch ", epoch, " has sample ", *wrong, " at index ",
                                    wrong - order->begin(), ", the dataset has samples 0 to ", size_ - 1));
  }
  return order;
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
    result.samples += position < length();
    result.indices.push_back(at(position % length()));
  }
  return result;
}

bool DistributedSampler::skip(int64_t per_rank) {
  if (micro_batches_left(per_rank) == 0) {
    return false;
  }
  position_ = std::min(length(), position_ + global_size(per_rank, options_.replicas));
  return true;
}

void DistributedSampler::start_epoch(int64_t epoch) {
  if (epoch != epoch_) {
    order_ = options_.order ? own_order(epoch) : nullptr;
  }
  epoch_ = epoch;
  position_ = 0;
}

DistributedSampler DistributedSampler::for_all_ranks() const {
  DistributedSampler all = *this;
  all.options_.rank = 0;
  all.options_.replicas = 1;
  return all;
}

void DistributedSampler::move_to(const DistributedSampler& other) {
  start_epoch(other.epoch_);
  position_ = other.position_;
}

int64_t DistributedSampler::micro_batches_per_epoch(int64_t per_rank) const {
  return micro_batches_from(0, per_rank);
}

int64_t DistributedSampler::micro_batches_left(int64_t per_rank) const {
  return micro_batches_from(position_, per_rank);
}

int64_t DistributedSampler::micro_batches_from(int64_t position, int64_t per_rank) const {
  const int64_t together = global_size(per_rank, options_.replicas);
  const int64_t left = length() - position;
  return options_.drop_last ? left / together : (left + together - 1) / together;
}

int64_t DistributedSampler::at(int64_t position) {
  if (!options_.shuffle && !options_.order) {
    return position;
  }
  if (order_ == nullptr) {
    order_ = std::make_shared<const std::vector<int64_t>>(permutation(size_, options_.seed, epoch_));
  }
  return (*order_)[static_cast<size_t>(position)];
}

nlohmann::json DistributedSampler::state() const {
  nlohmann::json state = {{"kind", kKind},         {"size", size_},   {"shuffle", options_.shuffle},
                          {"seed", options_.seed}, {"epoch", epoch_}, {"position", position_}};
  if (options_.order) {
    state["order"] = fingerprint_of(*order_);
  }
  return state;
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
  const char* const names[] = {"the sampler's", "the program's own"};
  const bool own = options_.order != nullptr;
  if (state.contains("order") != own) {
    differs("the order:", names[state.contains("order")], names[own]);
  }
  if (shuffle != options_.shuffle) {
    differs("shuffle:", shuffle.dump(), options_.shuffle ? "true" : "false");
  }
  if (options_.shuffle && seed != options_.seed) {
    differs("the seed", seed, options_.seed);
  }
  DistributedSampler loaded = *this;
  if (epoch >= 0) {
    loaded.start_epoch(epoch);
  }
  if (own && state["order"] != fingerprint_of(*loaded.order_)) {
    throw InputError("data",
                     concat("the saved data position is for another order of epoch ", epoch,
                            " than the program's own order gives now"),
                     "Make it depend only on the same data and the epoch, or start without --resume.");
  }
  if (position < 0 || position > loaded.length() || epoch < 0) {
    throw InputError("data", concat("the saved data position, epoch ", epoch, " sample ", position, ", is outside the ",
                                    loaded.length(), " samples"));
  }
  loaded.position_ = position;
  *this = std::move(loaded);
}

uint64_t fingerprint_of(std::span<const int64_t> samples) {
  uint64_t hash = kFnv1aStart;
  for (const int64_t sample : samples) {
    hash = fnv1a_step(hash, static_cast<uint64_t>(sample));
  }
  return hash | 1;
}

std::vector<int64_t> permutation(int64_t size, int64_t seed, int64_t epoch) {
  const auto low = [](int64_t value) { return static_cast<uint32_t>(static_cast<uint64_t>(value)); };
  const auto high = [](int64_t value) { return static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32); };
  std::seed_seq words{low(seed), high(seed), low(epoch), high(epoch)};
  std::mt19937_64 generator(words);
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  for (size_t left = order.size(); left > 1; --left) {
    // Rejects numbers above the range: a remainder would favour small ones, and std::uniform_int_distribution differs
    // between libraries.
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
