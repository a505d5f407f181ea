// gzip, whole and up to a limit.
#include "fuzz.h"

#include <trireme/data/gzip.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view packed = text_of(data, size);
  constexpr size_t kMost = size_t{4} << 20;
  allow_input_error([&] {
    const std::string whole = data::gunzip(packed, kMost, "fuzz.gz");
    require(whole.size() <= kMost, "no more comes out than was asked for");
    require_no_error("a part of what can be unpacked can be unpacked", [&] {
      require(data::gunzip(packed, whole.size() / 2, "fuzz.gz") == whole.substr(0, whole.size() / 2),
              "a part is the beginning of the whole");
    });
  });
  return 0;
}
