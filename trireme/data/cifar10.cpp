#include <trireme/data/cifar10.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/units.h>
#include <trireme/data/windows.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::data {

namespace fs = std::filesystem;

Cifar10::Cifar10(const Options& options) {
  if (options.files.empty()) {
    throw InputError("data", "no CIFAR-10 files given",
                     "Name those of its binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin.");
  }
  for (size_t channel = 0; channel < levels_.size(); ++channel) {
    const double mean = options.mean[channel];
    const double std = options.std[channel];
    if (!(std > 0) || !std::isfinite(std) || !std::isfinite(mean)) {
      throw InputError("data", concat("channel ", channel, " cannot be normalised with mean ", mean, " and std ", std),
                       "std must be above 0.");
    }
    for (size_t level = 0; level < 256; ++level) {
      levels_[channel][level] = static_cast<float>((static_cast<double>(level) / 255 - mean) / std);
    }
  }
  for (const fs::path& path : options.files) {
    const std::string file = path.string();
    std::string content = read_file(path);
    const auto bytes = static_cast<int64_t>(content.size());
    if (bytes == 0 || bytes % kRecord != 0) {
      throw InputError(
          "data",
          concat(file, " has ", bytes, " bytes, not a multiple of ", kRecord, " (1 of label and 3072 of image)"),
          "It is cut off or not CIFAR-10's binary version; fetch or copy it again.");
    }
    for (int64_t record = 0; record < bytes / kRecord; ++record) {
      const int label = static_cast<unsigned char>(content[static_cast<size_t>(record * kRecord)]);
      if (label >= kClasses) {
        throw InputError(
            "data", concat(file, ": the label of image ", record, " is ", label, ", CIFAR-10 has 0 to ", kClasses - 1),
            "It is damaged or not CIFAR-10's binary version (CIFAR-100 has two bytes of label).");
      }
    }
    records_ = records_.empty() ? std::move(content) : records_ + content;
  }
  name_ = options.files[0].filename().string();
  if (options.files.size() > 1) {
    name_ += concat(" and ", options.files.size() - 1, " more");
  }
}

std::vector<fs::path> Cifar10::training_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (int i = 1; i <= 5; ++i) {
    files.push_back(folder / concat("data_batch_", i, ".bin"));
  }
  return files;
}

std::vector<fs::path> Cifar10::test_files(const fs::path& folder) {
  return {folder / "test_batch.bin"};
}

Batch Cifar10::get(std::span<const int64_t> indices) const {
  return get_part(indices, Part::all);
}

Batch Cifar10::get_part(std::span<const int64_t> indices, Part part) const {
  check_indices(indices, size());
  Batch batch;
  batch.samples = static_cast<int64_t>(indices.size());
  if (part != Part::targets) {
    auto* value = batch.inputs.emplace_back(at::empty({batch.samples, kChannels, kSide, kSide}, at::kFloat))
                      .mutable_data_ptr<float>();
    for (const int64_t index : indices) {
      const unsigned char* from = record(index) + 1;
      for (const auto& levels : levels_) {
        value = std::transform(from, from + kArea, value, [&](unsigned char level) { return levels[level]; });
        from += kArea;
      }
    }
  }
  if (part != Part::inputs) {
    auto* label = batch.targets.emplace_back(at::empty({batch.samples}, at::kLong)).mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      *label++ = *record(index);
    }
  }
  return batch;
}

std::string Cifar10::describe() const {
  return concat("CIFAR-10: ", format_count(size()), " images (", name_, ')');
}

} // namespace trireme::data
