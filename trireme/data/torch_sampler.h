#pragma once

#include <trireme/base/error.h>
#include <trireme/data/sampler.h>

#include <ATen/core/ivalue.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::data {

/// DistributedSampler for a torch::data loader: use it instead of a RandomSampler.
///
///   trireme::TorchSampler sampler(train_size, world);
///   auto loader = torch::data::make_data_loader(std::move(train), sampler, 64);
///   for (auto& batch : *loader) { ... }
///   sampler.save(archive);               // where the loader is
///
/// Each pass over the loader is one epoch with its own order. Every rank gets the
/// same number of batches; surplus samples are left out.
///
/// A loader keeps a copy. Copies, and what was moved from, share one place: save(), load() and set_epoch() of any of
/// them are the loader's. One loader at a time reads by it; another one needs a sampler that is made for it.
///
/// After load() the next pass continues where save() was called, also in the middle of an epoch. The position counts
/// the batches that the loader requested: a loader without workers those that the loop has got, one with workers a few
/// more. There a loop counts its batches and resumes by start_at().
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  TorchSampler(int64_t size, int64_t rank, int64_t replicas, SamplerOptions options = {})
      : place_(std::make_shared<Place>(DistributedSampler(size, with_place(options, rank, replicas)))) {}
  /// For this rank of `world` (comm::World or comm::Group).
  template <typename Ranks>
  TorchSampler(int64_t size, const Ranks& ranks, SamplerOptions options = {})
      : TorchSampler(size, ranks.rank(), ranks.size(), options) {}
  TorchSampler(const TorchSampler&) = default; // moves are copies
  TorchSampler& operator=(const TorchSampler&) = default;
  ~TorchSampler() override = default;

  void reset(std::optional<size_t> new_size = std::nullopt) override {
    if (new_size) {
      place_->sampler = DistributedSampler(static_cast<int64_t>(*new_size), place_->sampler.options());
    }
    if (!std::exchange(place_->within_pass, false) || new_size) {
      place_->sampler.start_epoch(place_->passes++);
    }
    place_->ended = false;
    place_->begun = true;
    place_->reader = this;
  }
  /// Errors: InputError when another copy has begun a pass since this one's reset().
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    if (place_->reader != nullptr && place_->reader != this) {
      throw InputError("data", "two loaders read by copies of one trireme::TorchSampler at the same time",
                       "Make a TorchSampler for each loader.");
    }
    const auto batch = place_->sampler.next(static_cast<int64_t>(batch_size));
    if (!batch) {
      place_->ended = true;
      return std::nullopt;
    }
    return std::vector<size_t>(batch->indices.begin(), batch->indices.end());
  }

  /// Sets the epoch of the next pass, also after save() and load(). As in PyTorch it may be called before each pass,
  /// also after load(): a loaded epoch then continues in its middle.
  void set_epoch(int64_t epoch) {
    if (epoch < 0) {
      throw InputError("data", concat("set_epoch(", epoch, ")"), "Epochs count from 0.");
    }
    if (!(place_->within_pass && place_->sampler.epoch() == epoch)) {
      place_->within_pass = place_->begun = false;
      place_->passes = epoch;
    }
  }
  /// The next pass is this epoch after `batches` batches of this rank. Errors: InputError if the epoch has fewer.
  void start_at(int64_t epoch, int64_t batches, int64_t batch_size) {
    DistributedSampler sampler = place_->sampler;
    sampler.start_epoch(std::max<int64_t>(epoch, 0));
    if (epoch < 0 || batches < 0 || batch_size < 1 || batches > sampler.micro_batches_per_epoch(batch_size)) {
      throw InputError("data",
                       concat("start_at(epoch ", epoch, ", ", batches, " batches of ", batch_size, ") of ",
                              sampler.length(), " samples for ", sampler.options().replicas, " ranks"),
                       "Count the batches of this epoch only.");
    }
    for (int64_t i = 0; i < batches; ++i) {
      sampler.skip(batch_size);
    }
    place_->sampler = std::move(sampler);
    place_->passes = epoch + 1;
    place_->within_pass = true;
    place_->ended = false;
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    const bool within = place_->within_pass || (place_->begun && !place_->ended);
    const nlohmann::json state = {
        {"sampler", place_->sampler.state()}, {"passes", place_->passes}, {"ended", place_->ended}, {"within", within}};
    archive.write(kState, c10::IValue(state.dump()));
  }
  /// Errors: InputError for an archive of another sampler, or of other data.
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    if (!archive.try_read(kState, value) || !value.isString()) {
      throw InputError("data", "the archive holds no state of a trireme::TorchSampler");
    }
    const nlohmann::json state = nlohmann::json::parse(value.toStringRef());
    const int64_t passes = state.at("passes");
    const bool ended = state.at("ended");
    const bool within = state.value("within", passes > 0 && !ended);
    place_->sampler.load_state(state.at("sampler"));
    place_->passes = passes;
    place_->ended = ended;
    place_->within_pass = within;
    place_->begun = false;
  }

  DistributedSampler& sampler() { return place_->sampler; }

 private:
  // The position that all copies share.
  struct Place {
    explicit Place(DistributedSampler made) : sampler(std::move(made)) {}

    DistributedSampler sampler;
    int64_t passes = 0;
    bool ended = false;       // the pass has returned all batches
    bool begun = false;       // the sampler is in a pass of this process, and set_epoch() was not called since
    bool within_pass = false; // the next pass begins at the sampler's position
    const TorchSampler* reader = nullptr; // that began the pass; only compared
  };

  static SamplerOptions with_place(SamplerOptions options, int64_t rank, int64_t replicas) {
    options.rank = rank;
    options.replicas = replicas;
    return options;
  }

  static constexpr const char* kState = "trireme_sampler";

  std::shared_ptr<Place> place_;
};

} // namespace trireme::data
