// An R lazy-load database: as it comes, and as a block whose packing is in order, so that what is inside is reached
// too.
#include "fuzz.h"

#include <trireme/data/fetch_rdata.h>

#include <zlib.h>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

std::string block_of(std::string_view content) {
  uLongf packed = compressBound(content.size());
  std::string block(4 + packed, '\0');
  for (size_t place = 0; place < 4; ++place) {
    block[place] = static_cast<char>(content.size() >> (24 - 8 * place));
  }
  require(compress2(reinterpret_cast<Bytef*>(block.data() + 4), &packed, reinterpret_cast<const Bytef*>(content.data()),
                    content.size(), 1) == Z_OK,
          "zlib packs");
  block.resize(4 + packed);
  return block;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = text_of(data, size);
  allow_input_error([&] { static_cast<void>(data::read_rdb(bytes, "fuzz.rdb")); });
  allow_input_error(
      [&] { require(data::read_rdb(block_of(bytes), "fuzz.rdb").size() == 1, "one block gives one list"); });
  return 0;
}
