#include <trireme/data/mixture.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/data/sampler.h>
#include <trireme/data/windows.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdio>

namespace trireme::data {
namespace {

using Rows = std::vector<std::pair<size_t, int64_t>>; // data set and sample

// Copies the rows of `from` to those of `to` that are of this set.
void scatter(const std::vector<at::Tensor>& from, const Rows& rows, size_t set, std::vector<at::Tensor>& to) {
  for (size_t tensor = 0; tensor < from.size(); ++tensor) {
    if (to.size() <= tensor) {
      std::vector<int64_t> shape = from[tensor].sizes().vec();
      shape.at(0) = std::ssize(rows);
      to.push_back(at::empty(shape, from[tensor].options()));
    }
    int64_t next = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      if (rows[row].first == set) {
        to[tensor].select(0, static_cast<int64_t>(row)).copy_(from[tensor].select(0, next++));
      }
    }
  }
}

Batch read(const Dataset& set, std::span<const int64_t> samples, Part part) {
  return part == Part::all ? set.get(samples) : set.get_part(samples, part);
}

std::vector<int64_t> samples_of(size_t set, const Rows& rows) {
  std::vector<int64_t> samples;
  for (const auto& [of, sample] : rows) {
    if (of == set) {
      samples.push_back(sample);
    }
  }
  return samples;
}

bool any_masks_targets(const std::vector<std::shared_ptr<const Dataset>>& sets) {
  return std::ranges::any_of(sets, [](const auto& set) { return set->masks_targets(); });
}

// `of_a_sample`: the number of its targets.
int64_t count_targets_of(const std::vector<std::shared_ptr<const Dataset>>& sets, const Rows& rows,
                         int64_t of_a_sample) {
  int64_t counted = 0;
  for (size_t set = 0; set < sets.size(); ++set) {
    const std::vector<int64_t> samples = samples_of(set, rows);
    counted += sets[set]->masks_targets() ? sets[set]->counted_targets(samples) : std::ssize(samples) * of_a_sample;
  }
  return counted;
}

// One call for each data set.
Batch gather(const std::vector<std::shared_ptr<const Dataset>>& sets, const Rows& rows, Part part) {
  Batch batch{{}, {}, std::ssize(rows)};
  for (size_t set = 0; set < sets.size(); ++set) {
    const std::vector<int64_t> samples = samples_of(set, rows);
    if (samples.size() == rows.size()) {
      return read(*sets[set], samples, part);
    }
    if (!samples.empty()) {
      const Batch own = read(*sets[set], samples, part);
      scatter(own.inputs, rows, set, batch.inputs);
      scatter(own.targets, rows, set, batch.targets);
    }
  }
  return batch;
}

Batch first_sample(const Dataset& set) {
  const int64_t first = 0;
  return set.get({&first, 1});
}

std::string describe_sample(const Batch& batch) {
  std::string text;
  for (const auto* tensors : {&batch.inputs, &batch.targets}) {
    for (const at::Tensor& tensor : *tensors) {
      text += concat(text.empty() ? "" : ", ", tensor.dtype().name(), ' ', tensor.sizes().slice(1));
    }
  }
  return text;
}

// Returns the number of targets of a sample, which is the same in all sets.
int64_t check_samples_alike(const std::vector<std::shared_ptr<const Dataset>>& sets) {
  for (const auto& set : sets) {
    if (set == nullptr || set->size() < 1) {
      throw InputError("data", "a set of a mixture has no samples");
    }
  }
  const Batch sample = first_sample(*sets.at(0));
  const std::string first = describe_sample(sample);
  for (size_t i = 1; i < sets.size(); ++i) {
    if (const std::string own = describe_sample(first_sample(*sets[i])); own != first) {
      throw InputError("data",
                       concat("the samples of ", sets[0]->describe(), " are ", first, ", those of ",
                              sets[i]->describe(), " are ", own),
                       "Mix sets of the same type and length.");
    }
  }
  return sample.targets.empty() ? 0 : sample.target().numel();
}

std::vector<double> weights_of(const std::vector<Mixture::Set>& sets) {
  std::vector<double> weights;
  std::ranges::transform(sets, std::back_inserter(weights), &Mixture::Set::weight);
  return weights;
}

std::vector<std::shared_ptr<const Dataset>> data_of(const std::vector<Mixture::Set>& sets) {
  std::vector<std::shared_ptr<const Dataset>> data;
  std::ranges::transform(sets, std::back_inserter(data), &Mixture::Set::data);
  return data;
}

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return {text.data(), std::min(text.size() - 1, static_cast<size_t>(std::max(length, 0)))};
}

} // namespace

Mixture::Mixture(std::vector<Set> sets, Order order)
    : sets_(std::move(sets)),
      order_(order),
      choices_(weights_of(sets_)),
      targets_of_a_sample_(check_samples_alike(data_of(sets_))),
      permutations_(sets_.size()) {}

Mixture::Permutation Mixture::permutation_of(size_t set, int64_t epoch) const {
  constexpr int kSetsBit = 40; // epochs of different sets have different orders
  const std::lock_guard lock(mutex_);
  auto& known = permutations_[set];
  for (const auto& [of, order] : known) {
    if (of == epoch) {
      return order;
    }
  }
  if (known.size() > 1) {
    known.erase(known.begin());
  }
  known.emplace_back(
      epoch, std::make_shared<const std::vector<int64_t>>(
                 permutation(sets_[set].data->size(), order_.seed, epoch + (static_cast<int64_t>(set) << kSetsBit))));
  return known.back().second;
}

std::pair<size_t, int64_t> Mixture::sample_at(int64_t index) const {
  const MixtureOrder::Place place = choices_.at(index);
  const int64_t size = sets_[place.set].data->size();
  const int64_t position = place.number % size;
  return {place.set,
          order_.shuffle ? (*permutation_of(place.set, place.number / size))[static_cast<size_t>(position)] : position};
}

Rows Mixture::rows_of(std::span<const int64_t> indices) const {
  check_indices(indices, size());
  Rows rows;
  std::ranges::transform(indices, std::back_inserter(rows), [this](int64_t index) { return sample_at(index); });
  return rows;
}

Batch Mixture::get_part(std::span<const int64_t> indices, Part part) const {
  return gather(data_of(sets_), rows_of(indices), part);
}

bool Mixture::masks_targets() const {
  return any_masks_targets(data_of(sets_));
}

int64_t Mixture::counted_targets(std::span<const int64_t> indices) const {
  return count_targets_of(data_of(sets_), rows_of(indices), targets_of_a_sample_);
}

uint64_t Mixture::fingerprint() const {
  uint64_t hash = fnv1a_step(kFnv1aStart, order_.shuffle ? static_cast<uint64_t>(order_.seed) * 2 + 1 : 0);
  for (const Set& set : sets_) {
    hash = fnv1a_step(fnv1a_step(hash, static_cast<uint64_t>(set.data->size())), std::bit_cast<uint64_t>(set.weight));
    hash = fnv1a_step(hash, set.data->fingerprint());
  }
  return hash | 1;
}

uint64_t Mixture::checksum() const {
  std::vector<uint64_t> of_sets;
  std::ranges::transform(sets_, std::back_inserter(of_sets), [](const Set& set) { return set.data->checksum(); });
  return joint_checksum(of_sets);
}

std::string Mixture::describe() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < sets_.size(); ++i) {
    parts.push_back(concat(fixed(100 * choices_.shares()[i], 1), " % ", sets_[i].data->describe()));
  }
  return "mixture: " + join(parts, "; ");
}

std::string Mixture::describe_first(int64_t samples) const {
  const std::vector<int64_t> counts = choices_.counts(samples);
  std::vector<std::string> parts;
  for (size_t i = 0; i < sets_.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    parts.push_back(concat(fixed(samples > 0 ? 100 * count / static_cast<double>(samples) : 0, 1), " % ", sets_[i].name,
                           " (", fixed(count / static_cast<double>(sets_[i].data->size()), 2), " epochs)"));
  }
  return join(parts, ", ");
}

Concatenation::Concatenation(std::vector<std::shared_ptr<const Dataset>> sets)
    : sets_(std::move(sets)), targets_of_a_sample_(check_samples_alike(sets_)) {
  int64_t end = 0;
  for (const auto& set : sets_) {
    ends_.push_back(end += set->size());
  }
}

Rows Concatenation::rows_of(std::span<const int64_t> indices) const {
  check_indices(indices, size());
  Rows rows;
  for (const int64_t index : indices) {
    const auto set = static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    rows.emplace_back(set, index - (set == 0 ? 0 : ends_[set - 1]));
  }
  return rows;
}

Batch Concatenation::get_part(std::span<const int64_t> indices, Part part) const {
  return gather(sets_, rows_of(indices), part);
}

bool Concatenation::masks_targets() const {
  return any_masks_targets(sets_);
}

int64_t Concatenation::counted_targets(std::span<const int64_t> indices) const {
  return count_targets_of(sets_, rows_of(indices), targets_of_a_sample_);
}

uint64_t Concatenation::checksum() const {
  std::vector<uint64_t> of_sets;
  std::ranges::transform(sets_, std::back_inserter(of_sets), [](const auto& set) { return set->checksum(); });
  return joint_checksum(of_sets);
}

std::string Concatenation::describe() const {
  std::vector<std::string> parts;
  std::ranges::transform(sets_, std::back_inserter(parts), [](const auto& set) { return set->describe(); });
  return join(parts, "; ");
}

} // namespace trireme::data
