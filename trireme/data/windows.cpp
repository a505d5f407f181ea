#include <trireme/data/windows.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace trireme::data {

// B samples, L sequence length

int64_t count_windows(int64_t tokens, int64_t sequence_length, const std::string& source) {
  if (sequence_length < 1) {
    throw InputError("data", concat("sequence_length must be at least 1, got ", sequence_length));
  }
  const int64_t samples = (tokens - 1) / sequence_length;
  if (tokens < 1 || samples < 1) {
    throw InputError("data",
                     concat(source, " has ", tokens, " tokens; one sample of sequence_length ", sequence_length,
                            " needs ", sequence_length, " + 1"),
                     "Use a shorter sequence_length or more data.");
  }
  return samples;
}

Batch gather_windows(std::span<const int64_t> indices, int64_t sequence_length,
                     const std::function<void(int64_t, std::span<int64_t>)>& read, Part part) {
  const auto rows = static_cast<int64_t>(indices.size());
  if (part != Part::all) {
    const at::Tensor tokens_BL = at::empty({rows, sequence_length}, at::kLong);
    auto* out = tokens_BL.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      read(index * sequence_length + (part == Part::targets ? 1 : 0), {out, static_cast<size_t>(sequence_length)});
      out += sequence_length;
    }
    return part == Part::inputs ? Batch{{tokens_BL}, {}, rows} : Batch{{}, {tokens_BL}, rows};
  }
  const at::Tensor input_BL = at::empty({rows, sequence_length}, at::kLong);
  const at::Tensor target_BL = at::empty({rows, sequence_length}, at::kLong);
  auto* input = input_BL.mutable_data_ptr<int64_t>();
  auto* target = target_BL.mutable_data_ptr<int64_t>();
  std::vector<int64_t> window(static_cast<size_t>(sequence_length) + 1);
  for (const int64_t index : indices) {
    read(index * sequence_length, window);
    input = std::copy(window.begin(), window.end() - 1, input);
    target = std::copy(window.begin() + 1, window.end(), target);
  }
  return {{input_BL}, {target_BL}, rows};
}

void check_indices(std::span<const int64_t> indices, int64_t size) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= size) {
      throw Error("data", concat("there is no sample ", index, " among ", size));
    }
  }
}

} // namespace trireme::data
