#include <trireme/extensions/horovod/elastic/sampler.h>

#include <trireme/base/error.h>
#include <trireme/extensions/horovod/horovod.h>

#include <ATen/core/ivalue.h>
#include <nlohmann/json.hpp>

namespace trireme::horovod::elastic {
namespace {

constexpr const char* kKey = "elastic_sampler";

data::SamplerOptions options_of(bool shuffle, int64_t seed) {
  data::SamplerOptions options;
  options.shuffle = shuffle;
  options.drop_last = false;
  options.seed = seed;
  return options;
}

/// Same order and position, divided among the current ranks.
data::DistributedSampler divided(const data::DistributedSampler& sampler) {
  data::SamplerOptions options = sampler.options();
  options.rank = rank();
  options.replicas = size();
  data::DistributedSampler mine(sampler.size(), options);
  mine.load_state(sampler.state());
  return mine;
}

} // namespace

ElasticSampler::ElasticSampler(int64_t size, bool shuffle, int64_t seed)
    : options_(options_of(shuffle, seed)), recorded_(size, options_), handed_out_(recorded_) {}

void ElasticSampler::set_epoch(int64_t epoch) {
  recorded_.start_epoch(epoch);
}

void ElasticSampler::record_batch(int64_t batch_size) {
  if (batch_size < 1) {
    throw InputError("elastic", concat("record_batch(", batch_size, ")"),
                     "Pass the number of samples in this rank's batch.");
  }
  recorded_.skip(batch_size * size());
}

void ElasticSampler::reset(std::optional<size_t> new_size) {
  if (new_size) {
    recorded_ = data::DistributedSampler(static_cast<int64_t>(*new_size), options_);
  }
  handed_out_ = divided(recorded_);
}

std::optional<std::vector<size_t>> ElasticSampler::next(size_t batch_size) {
  const auto batch = handed_out_.next(static_cast<int64_t>(batch_size));
  return batch ? std::optional(std::vector<size_t>(batch->indices.begin(), batch->indices.end())) : std::nullopt;
}

void ElasticSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write(kKey, c10::IValue(state().dump()));
}
void ElasticSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  if (!archive.try_read(kKey, value) || !value.isString()) {
    throw InputError("elastic", "the archive has no state of an ElasticSampler");
  }
  load_state(nlohmann::json::parse(value.toStringRef()));
}

nlohmann::json ElasticSampler::state() const {
  return recorded_.state();
}
void ElasticSampler::load_state(const nlohmann::json& state) {
  recorded_.load_state(state);
}

} // namespace trireme::horovod::elastic
