// Texts with labels, in JSON lines.
#include "fuzz.h"

#include <trireme/data/labelled_text.h>

#include <ATen/core/Tensor.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The first byte: how many classes; 0: labels are names "a" and "b".
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const MemoryFile file(text_of(data + 1, size - 1));
  static const auto tokenizer = data::make_tokenizer("bytes");
  data::LabelledText::Options options{.files = {file.path()}, .sequence_length = 8, .classes = data[0]};
  if (options.classes == 0) {
    options.names = {"a", "b"};
    options.classes = 2;
  }
  allow_input_error([&] {
    const data::LabelledText set(options, *tokenizer);
    require(set.size() > 0, "there are texts");
    require_no_error("what was opened can be read", [&] {
      const data::Batch batch = set.get(std::vector<int64_t>{0, set.size() - 1});
      require(batch.inputs.at(0).size(1) == 8, "texts are cut or padded");
      const int64_t* labels = batch.targets.at(0).const_data_ptr<int64_t>();
      for (int i = 0; i < 2; ++i) {
        require(labels[i] >= 0 && labels[i] < options.classes, "labels are among the classes");
      }
    });
  });
  return 0;
}
