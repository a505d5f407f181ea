#pragma once

#include <trireme/data/dataset.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme::data {

/// Makes a micro-batch of samples: PyTorch's collate_fn. Each sample is Dataset::get() of one index, so the first dim
/// of its tensors is 1; the result's first dim is the number of samples. Called from the loader's thread. It must
/// depend on the samples only, so that a resumed run repeats it.
using Collate = std::function<Batch(std::vector<Batch> samples)>;

/// Returns `dataset` with micro-batches made by `collate`. Cost: one get() per sample, with inputs and targets on every
/// stage.
std::shared_ptr<const Dataset> collated(std::shared_ptr<const Dataset> dataset, Collate collate);

} // namespace trireme::data
