#include "masked_text.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/windows.h>
#include <trireme/models/bert_layers.h>

#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

constexpr double kAskedShare = 0.15;
constexpr uint64_t kSeed = 1234;

int64_t length_of(std::string_view piece) {
  const size_t stop = piece.rfind('.');
  return static_cast<int64_t>(stop == std::string_view::npos || stop + 1 < piece.size() / 2 ? piece.size() : stop + 1);
}

} // namespace

MaskedText::MaskedText(const std::filesystem::path& file, int64_t length)
    : text_(trireme::read_file(file)), length_(length), name_(file.filename().string()) {
  if (length < 16) {
    throw trireme::InputError("masked text", trireme::concat("a sample needs at least 16 bytes, got ", length));
  }
  if (size() < 1) {
    throw trireme::InputError(
        "masked text", trireme::concat(file.string(), " has ", text_.size(), " bytes, one sample needs ", length));
  }
}

trireme::data::Batch MaskedText::get(std::span<const int64_t> indices) const {
  trireme::data::check_indices(indices, size());
  const auto rows = static_cast<int64_t>(indices.size());
  const at::Tensor tokens_BT = torch::full({rows, length_}, kPadding, torch::kInt64);
  const at::Tensor mask_BT = torch::zeros({rows, length_}, torch::kBool);
  const at::Tensor target_BT = torch::full({rows, length_}, trireme::models::kIgnoredTarget, torch::kInt64);
  auto* tokens = tokens_BT.mutable_data_ptr<int64_t>();
  auto* mask = mask_BT.mutable_data_ptr<bool>();
  auto* target = target_BT.mutable_data_ptr<int64_t>();
  const auto asked = static_cast<size_t>(kAskedShare * static_cast<double>(length_));
  for (const int64_t index : indices) {
    const std::string_view piece =
        std::string_view(text_).substr(static_cast<size_t>(index * length_), static_cast<size_t>(length_));
    const int64_t length = length_of(piece);
    std::transform(piece.begin(), piece.begin() + length, tokens,
                   [](char byte) { return static_cast<unsigned char>(byte); });
    std::fill_n(mask, length, true);
    std::mt19937_64 random(kSeed + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15ull);
    for (size_t done = 0; done < asked;) {
      const auto place = static_cast<int64_t>(random() % static_cast<uint64_t>(length));
      if (target[place] != trireme::models::kIgnoredTarget) {
        continue;
      }
      target[place] = tokens[place];
      const uint64_t kind = random() % 10;
      tokens[place] = kind < 8 ? kMask : kind == 8 ? static_cast<int64_t>(random() % 256) : tokens[place];
      ++done;
    }
    tokens += length_;
    mask += length_;
    target += length_;
  }
  trireme::data::Batch batch;
  batch.inputs = {tokens_BT, mask_BT};
  batch.targets = {target_BT};
  batch.samples = rows;
  return batch;
}

std::string MaskedText::describe() const {
  return trireme::concat(size(), " pieces of at most ", length_, " bytes (", name_, ')');
}
