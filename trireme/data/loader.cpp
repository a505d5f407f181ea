#include <trireme/data/loader.h>

#include <trireme/base/error.h>
#include <trireme/base/notes.h>
#include <trireme/data/target_counts.h>

#include <nlohmann/json.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::data {
namespace {

Batch make_batch(const Dataset& dataset, const DistributedSampler::MicroBatch& micro_batch, Part part, bool pin) {
  Batch batch = part == Part::all ? dataset.get(micro_batch.indices) : dataset.get_part(micro_batch.indices, part);
  const auto rows = static_cast<int64_t>(micro_batch.indices.size());
  for (auto* tensors : {&batch.inputs, &batch.targets}) {
    for (at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.dim() < 1 || tensor.size(0) != rows) {
        throw Error(
            "data",
            concat("the dataset returned a tensor whose first dim is not ", rows, ", the number of samples asked for"),
            concat("Dataset: ", dataset.describe()));
      }
      tensor =
          pin && tensor.is_cpu() ? tensor.contiguous().pin_memory() : tensor; // rows with gaps are copied synchronously
    }
  }
  batch.samples = micro_batch.samples;
  batch.fingerprint = fingerprint_of(micro_batch.indices);
  batch.masks_targets = dataset.masks_targets();
  return batch;
}

} // namespace

/// Makes the remaining micro-batches of one epoch in a thread, at most `depth` ahead.
class DataLoader::Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const Dataset> dataset, DistributedSampler sampler, int64_t per_rank, int64_t depth,
             Part part, bool pin)
      : dataset_(std::move(dataset)),
        sampler_(std::move(sampler)),
        per_rank_(per_rank),
        depth_(static_cast<size_t>(depth)),
        part_(part),
        pin_(pin),
        thread_([this] { work(); }) {}

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Called at most once per remaining micro-batch of the epoch, and not after a throw.
  Batch take() {
    const Note note("waiting for the loader");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
    if (ready_.empty()) {
      std::rethrow_exception(failure_);
    }
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch;
  }

 private:
  void work() {
    try {
      while (const auto micro_batch = sampler_.next(per_rank_)) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] { return stopping_ || ready_.size() < depth_; });
          if (stopping_) {
            return;
          }
        }
        const Note note("making a micro-batch ahead");
        Batch batch = make_batch(*dataset_, *micro_batch, part_, pin_);
        {
          const std::lock_guard lock(mutex_);
          ready_.push_back(std::move(batch));
        }
        changed_.notify_all();
      }
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  DistributedSampler sampler_;
  int64_t per_rank_;
  size_t depth_;
  Part part_;
  bool pin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DistributedSampler sampler, int64_t micro_batch_size,
                       int64_t prefetch, Part part, bool pin)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      micro_batch_size_(micro_batch_size),
      prefetch_(prefetch),
      part_(part),
      pin_(pin) {
  if (dataset_ == nullptr) {
    throw InputError("data", "a loader needs a dataset, got none");
  }
  if (prefetch < 0) {
    throw InputError("data", concat("prefetch must be 0 or more micro-batches, got ", prefetch));
  }
  if (sampler_.size() != dataset_->size()) {
    throw InputError("data", concat("the sampler has ", sampler_.size(), " samples, the dataset ", dataset_->size()),
                     "Make the sampler with the dataset's size().");
  }
  sampler_.micro_batches_per_epoch(micro_batch_size); // refuses a bad size at once
}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

std::optional<Batch> DataLoader::next() {
  if (batches_left() == 0) {
    prefetcher_.reset();
    return std::nullopt;
  }
  if (prefetch_ == 0) {
    DistributedSampler ahead = sampler_;
    Batch batch = make_batch(*dataset_, *ahead.next(micro_batch_size_), part_, pin_);
    sampler_ = std::move(ahead);
    return batch;
  }
  if (prefetcher_ == nullptr) {
    prefetcher_ = std::make_unique<Prefetcher>(dataset_, sampler_, micro_batch_size_, prefetch_, part_, pin_);
  }
  try {
    Batch batch = prefetcher_->take();
    sampler_.skip(micro_batch_size_);
    return batch;
  } catch (...) {
    prefetcher_.reset();
    throw;
  }
}

bool DataLoader::skip() {
  prefetcher_.reset();
  return sampler_.skip(micro_batch_size_);
}

std::optional<double> DataLoader::mean_targets_ahead(int64_t micro_batches, TargetsOf ranks) {
  if (part_ == Part::inputs || !dataset_->masks_targets()) {
    return std::nullopt;
  }
  const bool of_all = ranks == TargetsOf::all_ranks;
  if (!counter_ || counted_ != ranks) {
    counter_ = of_all ? sampler_.for_all_ranks() : sampler_;
    counted_ = ranks;
  }
  counter_->move_to(sampler_);
  const int64_t replicas = of_all ? sampler_.options().replicas : 1;
  int64_t counted = 0;
  for (int64_t i = 0; i < micro_batches; ++i) {
    auto samples = counter_->next(micro_batch_size_ * replicas);
    if (!samples) {
      counter_->start_epoch(counter_->epoch() + 1);
      samples = counter_->next(micro_batch_size_ * replicas);
    }
    if (!samples) {
      return std::nullopt; // check_epoch() refuses it
    }
    counted += dataset_->counted_targets(samples->indices);
  }
  return static_cast<double>(counted) / static_cast<double>(micro_batches * replicas);
}

void DataLoader::start_epoch(int64_t epoch) {
  prefetcher_.reset();
  sampler_.start_epoch(epoch);
}

int64_t DataLoader::batches_per_epoch() const {
  return sampler_.micro_batches_per_epoch(micro_batch_size_);
}

int64_t DataLoader::batches_left() const {
  return sampler_.micro_batches_left(micro_batch_size_);
}

nlohmann::json DataLoader::state() const {
  nlohmann::json state = sampler_.state();
  if (const uint64_t fingerprint = dataset_->fingerprint(); fingerprint != 0) {
    state["data"] = fingerprint;
  }
  if (const uint64_t checksum = dataset_->checksum(); checksum != 0) {
    state["checksum"] = checksum;
  }
  return state;
}

void DataLoader::load_state(const nlohmann::json& state) {
  const auto saved = state.is_object() ? state.find("data") : state.end();
  if (dataset_->fingerprint() != 0 && (saved == state.end() || *saved != dataset_->fingerprint())) {
    throw InputError("data", concat("the saved data position is not one of ", dataset_->describe()),
                     "Use the same sets, weights and seed as before, or start without --resume.");
  }
  DistributedSampler moved = sampler_;
  moved.load_state(state);
  const auto checksum = state.find("checksum"); // earlier checkpoints have none
  if (dataset_->checksum() != 0 && checksum != state.end() && *checksum != dataset_->checksum()) {
    throw InputError(
        "data", concat("the saved data position is one of other samples than those of now, of ", dataset_->describe()),
        "Put the earlier files back, or begin a new run with the saved weights: model.init_from.");
  }
  sampler_ = std::move(moved);
  prefetcher_.reset();
}

void DataLoader::check_epoch() const {
  if (batches_per_epoch() == 0) {
    const auto replicas = sampler_.options().replicas;
    throw InputError("data",
                     concat(sampler_.length(), " samples are fewer than one micro-batch of all ranks: ",
                            micro_batch_size_, " * ", replicas, " = ", micro_batch_size_ * replicas),
                     "Use a smaller micro-batch, more data, or drop_last: false.");
  }
}

RepeatingLoader::RepeatingLoader(DataLoader loader)
    : RepeatingLoader(std::make_unique<DataLoader>(std::move(loader))) {}

RepeatingLoader::RepeatingLoader(std::unique_ptr<EpochLoader> loader) : loader_(std::move(loader)) {
  if (loader_ == nullptr) {
    throw InputError("data", "RepeatingLoader got no loader");
  }
  loader_->check_epoch();
}

void RepeatingLoader::set_micro_batches_per_step(int64_t count) {
  if (count < 1) {
    throw InputError("data", concat("a step must have at least 1 micro-batch, got ", count));
  }
  per_step_ = count;
  begin_step();
}

void RepeatingLoader::skip() {
  while (!loader_->skip()) {
    start_next_epoch();
  }
  if (left_in_step_ == 0) {
    left_in_step_ = per_step_;
    mean_targets_.reset();
  }
  --left_in_step_;
}

Batch RepeatingLoader::next() {
  if (left_in_step_ == 0) {
    mean_targets_ = loader_->mean_targets_ahead(per_step_, ranks_);
    left_in_step_ = per_step_;
  }
  Batch batch = next_of_epochs();
  --left_in_step_;
  if (mean_targets_ && batch.masks_targets) {
    const auto counted = static_cast<double>(count_targets(batch));
    batch.loss_weight = counted > 0 ? counted / *mean_targets_ : 0;
  }
  return batch;
}

Batch RepeatingLoader::next_of_epochs() {
  while (true) {
    if (auto batch = loader_->next()) {
      return *std::move(batch);
    }
    start_next_epoch();
  }
}

void RepeatingLoader::start_next_epoch() {
  loader_->start_epoch(loader_->epoch() + 1);
  loader_->check_epoch();
}

nlohmann::json RepeatingLoader::state() const {
  return loader_->state();
}

void RepeatingLoader::load_state(const nlohmann::json& state) {
  begin_step();
  loader_->load_state(state);
}

} // namespace trireme::data
