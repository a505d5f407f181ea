#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <vector>

namespace trireme::test {

/// The samples of a step, the first is 0, of a run that takes `size` of them at a time in their order and begins again
/// at the end.
inline data::Batch batch_of_step(const data::Dataset& data, int64_t step, int64_t size) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    indices.push_back((step * size + i) % data.size());
  }
  return data.get(indices);
}

} // namespace trireme::test
