#include <trireme/data/replay_loader.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace trireme::data {
namespace {

// Of all contents, whatever fingerprint the source gave the batch.
uint64_t hash_of_contents(const Batch& batch) {
  Batch contents{batch.inputs, batch.targets, batch.samples};
  identify(contents);
  return contents.fingerprint;
}

} // namespace

ReplayLoader::ReplayLoader(Begin begin, std::string describe, bool compares)
    : begin_(std::move(begin)), describe_(std::move(describe)), compares_(compares) {
  if (!begin_) {
    throw InputError("data", "ReplayLoader got no function that starts an epoch");
  }
}

std::optional<Batch> ReplayLoader::next() {
  if (ended_) {
    return std::nullopt;
  }
  if (!next_) {
    next_ = begin_(epoch_);
  }
  std::optional<Batch> batch = next_();
  if (!batch) {
    if (batches_ == 0) {
      throw InputError("data", concat("epoch ", epoch_, " of \"", describe_, "\" has no batch"),
                       "Give it data, or a smaller batch size.");
    }
    ended_ = true;
    return std::nullopt;
  }
  const int64_t rows =
      batch->inputs.empty() || !batch->input().defined() || batch->input().dim() == 0 ? 0 : batch->input().size(0);
  if (rows == 0 || (rows_ != 0 && rows != rows_)) {
    throw InputError("data",
                     concat("batch ", batches_, " of epoch ", epoch_, " of \"", describe_, "\" has ", rows, " rows",
                            rows_ != 0 ? concat(", the others have ", rows_) : ""),
                     "Make all batches of the same size; DataLoaderOptions::drop_last(true) leaves a last one out.");
  }
  rows_ = rows;
  batch->samples = batch->samples == 0 ? rows : batch->samples;
  last_ = hash_of_contents(*batch);
  ++batches_;
  return batch;
}

bool ReplayLoader::skip() {
  return next().has_value();
}

void ReplayLoader::start_epoch(int64_t epoch) {
  next_ = nullptr;
  ended_ = false;
  epoch_ = epoch;
  batches_ = 0;
  last_ = 0;
}

nlohmann::json ReplayLoader::state() const {
  return {{"epoch", epoch_}, {"batches", batches_}, {"last", last_}};
}

void ReplayLoader::load_state(const nlohmann::json& state) {
  const int64_t batches = state.at("batches");
  start_epoch(state.at("epoch"));
  for (int64_t read = 0; read < batches; ++read) {
    if (!skip()) {
      throw InputError("data",
                       concat("the checkpoint is after batch ", batches, " of epoch ", epoch_, ", and \"", describe_,
                              "\" now has ", batches_, " of them"),
                       "Use the same data, batch size and number of ranks, or train from the beginning.");
    }
  }
  const uint64_t last = state.at("last");
  if (compares_ && are_of_other_samples(last_, true, last, true)) {
    throw InputError("data",
                     concat("batch ", batches - 1, " of epoch ", epoch_, " of \"", describe_,
                            "\" is another one than before the checkpoint"),
                     "Give the same batches again: the same data, batch size and number of ranks, and a sampler whose "
                     "order is that of the epoch (trireme::TorchSampler; torch's RandomSampler draws a new one).");
  }
}

} // namespace trireme::data
