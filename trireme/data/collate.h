#pragma once

#include <trireme/data/dataset.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme::data {

/// Makes a micro-batch of samples: PyTorch's collate_fn. Each sample is what Dataset::get() returns for it alone, so its tensors' first dim
/// is 1; that of what it returns is the number of samples. Called from the loader's thread; a function of the samples alone, so that a resumed
/// run repeats it.
using Collate = std::function<Batch(std::vector<Batch> samples)>;

/// `dataset` with micro-batches that `collate` makes. Cost: a get() for each sample, of all its parts on every stage.
std::shared_ptr<const Dataset> collated(std::shared_ptr<const Dataset> dataset, Collate collate);

} // namespace trireme::data
