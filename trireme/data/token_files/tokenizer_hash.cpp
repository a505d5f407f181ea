#include <trireme/data/token_files/tokenizer_hash.h>

#include <trireme/base/file.h>
#include <trireme/data/token_files/shard_index.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <xxhash.h>

#include <string>
#include <vector>

namespace trireme::data {

uint64_t tokenizer_hash(const std::string& spec) {
  const std::vector<tokenizer::TokenizerFile> files = tokenizer::deciding_files(spec);
  std::string hashes = files.empty() ? "bytes" : "";
  for (const tokenizer::TokenizerFile& file : files) {
    const std::string content = read_file(file.path);
    hashes += hex_of(XXH3_64bits(content.data(), content.size()));
  }
  return XXH3_64bits(hashes.data(), hashes.size());
}

} // namespace trireme::data
