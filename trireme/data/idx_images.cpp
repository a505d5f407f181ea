#include <trireme/data/idx_images.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/units.h>
#include <trireme/data/gzip.h>
#include <trireme/data/windows.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

struct Idx {
  std::vector<size_t> dims;
  std::string elements;
};

std::string hex(std::string_view bytes) {
  std::ostringstream out;
  out << std::hex << std::setfill('0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    out << (i == 0 ? "" : " ") << std::setw(2) << int{static_cast<unsigned char>(bytes[i])};
  }
  return out.str();
}

/// The first four bytes are 0, 0, the element type (8: unsigned byte) and the number of dims.
void check_magic(std::string_view head, char num_dims, const std::string& file) {
  const std::string_view found = head.substr(0, 4);
  const char wanted[] = {0, 0, 8, num_dims};
  if (found == std::string_view(wanted, 4)) {
    return;
  }
  std::string next = "Name an IDX file of unsigned bytes, like MNIST's, plain or .gz.";
  if (found.size() == 4 && found.substr(0, 3) == std::string_view(wanted, 3) && (found[3] == 1 || found[3] == 3)) {
    next = num_dims == 3 ? "It has labels: were the files of images and labels swapped?"
                         : "It has images: were the files of images and labels swapped?";
  }
  throw InputError("data",
                   concat(file, " begins with ", found.empty() ? "nothing" : hex(found), ", IDX ",
                          num_dims == 3 ? "images" : "labels", " begin with ", hex({wanted, 4})),
                   next);
}

Idx read_idx(const fs::path& path, char num_dims) {
  const std::string file = path.string();
  std::string content = read_file(path);
  const bool packed = is_gzip(content);
  const size_t head_bytes = 4 + 4 * static_cast<size_t>(num_dims);
  const std::string head = packed ? gunzip(content, head_bytes, file) : content.substr(0, head_bytes);
  check_magic(head, num_dims, file);
  if (head.size() < head_bytes) {
    throw InputError("data", concat(file, " ends within its header of ", head_bytes, " bytes"),
                     "It is cut off; fetch or copy it again.");
  }
  Idx idx;
  size_t expected = 1;
  std::string product;
  bool overflow = false;
  for (size_t at = 4; at < head_bytes; at += 4) {
    size_t dim = 0;
    for (size_t i = 0; i < 4; ++i) {
      dim = dim << 8 | static_cast<unsigned char>(head[at + i]);
    }
    idx.dims.push_back(dim);
    product += concat(product.empty() ? "" : " * ", dim);
    overflow |= __builtin_mul_overflow(expected, dim, &expected);
  }
  if (overflow || expected == 0 || expected > SIZE_MAX / 2) {
    throw InputError("data", concat(file, ": its header states an impossible size of ", product, " bytes"),
                     "It is damaged; fetch or copy it again.");
  }
  if (packed) {
    content = gunzip(content, head_bytes + expected + 1, file);
  }
  if (content.size() != head_bytes + expected) {
    const size_t found = content.size() - head_bytes;
    throw InputError("data",
                     concat(file, " holds ", packed && found > expected ? "at least " : "", found,
                            " bytes after its header, which states ", product, " = ", expected),
                     "It is cut off or damaged; fetch or copy it again.");
  }
  idx.elements = std::move(content.erase(0, head_bytes));
  return idx;
}

} // namespace

IdxImages::IdxImages(const Options& options) : levels_(256) {
  if (options.images.empty() || options.images.size() != options.labels.size()) {
    throw InputError("data",
                     concat(options.images.size(), " files of images, but ", options.labels.size(), " of labels"),
                     "Each file of images needs its file of labels, in the same order.");
  }
  if (!(options.std > 0) || !std::isfinite(options.std) || !std::isfinite(options.mean)) {
    throw InputError("data", concat("pixels cannot be normalised with mean ", options.mean, " and std ", options.std),
                     "std must be above 0.");
  }
  for (size_t level = 0; level < levels_.size(); ++level) {
    levels_[level] = static_cast<float>((static_cast<double>(level) / 255 - options.mean) / options.std);
  }
  name_ = options.images[0].filename().string();
  for (size_t i = 0; i < options.images.size(); ++i) {
    const std::string images_file = options.images[i].string();
    const std::string labels_file = options.labels[i].string();
    Idx images = read_idx(options.images[i], 3);
    const Idx labels = read_idx(options.labels[i], 1);
    if (images.dims[0] != labels.dims[0]) {
      throw InputError("data", concat(images_file, " has ", images.dims[0], " images, ", labels_file, " has ",
                                      labels.dims[0], " labels"));
    }
    const auto height = static_cast<int64_t>(images.dims[1]);
    const auto width = static_cast<int64_t>(images.dims[2]);
    if (i > 0 && (height != height_ || width != width_)) {
      throw InputError("data", concat(images_file, " has images of ", height, " x ", width, ", the files before it of ",
                                      height_, " x ", width_));
    }
    height_ = height;
    width_ = width;
    for (size_t n = 0; n < labels.elements.size() && options.classes > 0; ++n) {
      const int64_t label = static_cast<unsigned char>(labels.elements[n]);
      if (label >= options.classes) {
        throw InputError("data",
                         concat(labels_file, ": label ", n, " is ", label, ", there are ", options.classes,
                                " classes (0 to ", options.classes - 1, ')'),
                         "Raise the model's classes.");
      }
    }
    pixels_ = i == 0 ? std::move(images.elements) : pixels_ + images.elements;
    labels_ += labels.elements;
  }
}

int64_t IdxImages::num_labels() const {
  const auto less = [](char a, char b) { return static_cast<unsigned char>(a) < static_cast<unsigned char>(b); };
  return 1 + int64_t{static_cast<unsigned char>(*std::max_element(labels_.begin(), labels_.end(), less))};
}

Batch IdxImages::get(std::span<const int64_t> indices) const {
  return get_part(indices, Part::all);
}

Batch IdxImages::get_part(std::span<const int64_t> indices, Part part) const {
  check_indices(indices, size());
  Batch batch;
  batch.samples = static_cast<int64_t>(indices.size());
  if (part != Part::targets) {
    const auto area = static_cast<size_t>(height_ * width_);
    const at::Tensor& input_BCHW =
        batch.inputs.emplace_back(at::empty({batch.samples, 1, height_, width_}, at::kFloat));
    auto* pixel = input_BCHW.mutable_data_ptr<float>();
    for (const int64_t index : indices) {
      const auto* from = reinterpret_cast<const unsigned char*>(pixels_.data()) + static_cast<size_t>(index) * area;
      pixel = std::transform(from, from + area, pixel, [this](unsigned char level) { return levels_[level]; });
    }
  }
  if (part != Part::inputs) {
    auto* label = batch.targets.emplace_back(at::empty({batch.samples}, at::kLong)).mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      *label++ = static_cast<unsigned char>(labels_[static_cast<size_t>(index)]);
    }
  }
  return batch;
}

std::string IdxImages::describe() const {
  return concat("images: ", format_count(size()), " of ", height_, " x ", width_, ", ", num_labels(), " labels (",
                name_, ')');
}

} // namespace trireme::data
