// model.safetensors.index.json of a Hugging Face folder, beside two files of weights.
#include "fuzz.h"

#include <trireme/checkpoint/weight_files.h>

#include <fstream>
#include <set>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

struct Folder {
  Folder() {
    write(
        "model-00001-of-00002.safetensors",
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[],"data_offsets":[8,12]}})",
        12);
    write("model-00002-of-00002.safetensors", R"({"c":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]}})", 6);
  }
  void write(const char* name, const std::string& header, size_t bytes) const {
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    std::ofstream(scratch.path() / name, std::ios::binary) << file << header << std::string(bytes, '\0');
  }
  ScratchFolder scratch;
};

} // namespace

/// Tensors are those of the index, each in its file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  std::ofstream(folder.scratch.path() / "model.safetensors.index.json", std::ios::binary) << text_of(data, size);
  allow_input_error([&] {
    const auto weights = checkpoint::WeightFiles::open(folder.scratch.path());
    require(weights.files().size() <= 2, "no other files are read");
    for (const std::string& name : weights.names()) {
      require(std::set<std::string>{"a", "b", "c"}.count(name) == 1, "a file has no such tensor");
      require_no_error("what is listed can be read", [&] { weights.tensor(name); });
    }
  });
  return 0;
}
