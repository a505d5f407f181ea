// IDX images and labels, plain or gzipped.
#include "fuzz.h"

#include <trireme/data/idx_images.h>

#include <ATen/core/Tensor.h>

#include <algorithm>

using namespace trireme;
using namespace trireme::fuzz;

/// Two bytes, little-endian: how many of the rest are the file of images; then comes that of labels.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::string_view rest = text_of(data + 2, size - 2);
  const size_t cut = std::min<size_t>(data[0] | data[1] << 8, rest.size());
  const MemoryFile images(rest.substr(0, cut));
  const MemoryFile labels(rest.substr(cut));
  allow_input_error([&] {
    const data::IdxImages set({.images = {images.path()}, .labels = {labels.path()}, .classes = 10});
    require(set.size() > 0 && set.num_labels() <= 10, "there are images of ten classes");
    require_no_error("what was opened can be read", [&] {
      const data::Batch batch = set.get(std::vector<int64_t>{0, set.size() - 1});
      require(batch.inputs.at(0).size(2) == set.height() && batch.inputs.at(0).size(3) == set.width(),
              "images have the size that they say");
    });
  });
  return 0;
}
