// The header of a safetensors file.
#include "fuzz.h"

#include <trireme/checkpoint/safetensors_header.h>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

/// As it comes, or with the length of the header in front that it has.
void read(std::string_view file) {
  allow_input_error([&] {
    const checkpoint::Header header = checkpoint::parse_header(file, "fuzz.safetensors");
    uint64_t end = 0;
    for (const auto& tensor : header.tensors) {
      require(tensor.begin == end && tensor.end >= tensor.begin, "tensors lie one after the other");
      end = tensor.end;
    }
    require(header.data_start + end == file.size(), "tensors end where the file does");
    require_no_error("a header can be written again", [&] {
      std::string again = checkpoint::header_text(header.tensors, header.metadata);
      again.resize(again.size() + end);
      const checkpoint::Header second = checkpoint::parse_header(again, "again");
      require(second.tensors.size() == header.tensors.size() && second.metadata == header.metadata,
              "written and read again it is the same");
    });
  });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file = text_of(data, size);
  read(file);
  // Most changes make the length wrong: the same with the right one, up to the last brace.
  if (const size_t brace = file.rfind('}'); size > 8 && brace != std::string_view::npos && brace >= 8) {
    std::string whole(file);
    for (size_t place = 0; place < 8; ++place) {
      whole[place] = static_cast<char>((brace - 7) >> (8 * place));
    }
    read(whole);
  }
  return 0;
}
