// A token shard: as it comes, and with the checksum that its header should have.
#include "fuzz.h"

#include <trireme/data/token_files/shard_format.h>

#include <xxhash.h>

#include <cstring>
#include <string>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

void read(const std::string& content) {
  const std::span bytes(reinterpret_cast<const unsigned char*>(content.data()), content.size());
  allow_input_error([&] {
    const data::ShardHeader header = data::read_shard_header(bytes, "fuzz.bin");
    require(header.file_bytes() == bytes.size(), "the header tells the size");
    require(data::kShardHeaderBytes + static_cast<uint64_t>(header.num_tokens * header.token_bytes) <= bytes.size(),
            "tokens lie in the file");
    for (int64_t i = 0; i < header.num_documents; ++i) {
      const unsigned char* const entry = bytes.data() + header.documents_offset() + i * 8;
      require(data::read_u64(entry) < static_cast<uint64_t>(header.num_tokens), "documents begin at a token");
    }
    require(!header.counted_tokens ||
                header.mask_offset() + static_cast<uint64_t>(header.num_tokens + 7) / 8 == bytes.size(),
            "the mask ends the file");
    data::has_right_checksum(bytes, header.checksum);
    require(header.encode() == content.substr(0, data::kShardHeaderBytes), "written again it is the same");
  });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string content(text_of(data, size));
  read(content);
  constexpr size_t kHashed = data::kShardHeaderBytes - sizeof(uint64_t);
  if (size >= data::kShardHeaderBytes) {
    std::memset(content.data() + 72, 0, kHashed - 72); // not looked at
    const uint64_t hash = XXH3_64bits(content.data(), kHashed);
    std::memcpy(content.data() + kHashed, &hash, sizeof hash);
    read(content);
  }
  return 0;
}
