// The .idx file of Megatron's indexed datasets.
#include "fuzz.h"

#include <trireme/data/token_files/megatron_index.h>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    const data::MegatronIndex index = data::read_megatron_index({data, size}, "fuzz.idx");
    require(index.token_bytes == 2 || index.token_bytes == 4, "only these types are read");
    require(index.num_tokens >= 0 && index.num_documents >= 0, "counts are counts");
    int64_t before = 0;
    for (int64_t i = 0; i < index.num_documents; ++i) {
      const int64_t start = index.document_start(i);
      require(start >= before && start <= index.num_tokens, "documents follow one another");
      before = start;
    }
  });
  return 0;
}
