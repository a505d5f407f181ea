// index.json of a folder of token shards.
#include "fuzz.h"

#include <trireme/data/token_files/shard_index.h>

#include <string>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    const auto index = data::ShardIndex::parse(text_of(data, size), "index.json");
    for (const auto& shard : index.shards) {
      require(shard.file.find('/') == std::string::npos && shard.file != "..", "shards lie in the folder");
    }
    require_no_error("an index can be written and read again", [&] {
      const std::string again = index.to_text();
      require(data::ShardIndex::parse(again, "again").to_text() == again, "written and read again it is the same");
    });
  });
  return 0;
}
