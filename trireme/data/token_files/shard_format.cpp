#include <trireme/data/token_files/shard_format.h>

#include <trireme/base/error.h>
#include <trireme/data/token_files/file_map.h>

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <limits>

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read without conversion");

// As it lies in the file.
struct RawHeader {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocab_size;
  uint64_t num_tokens;
  uint64_t num_documents;
  uint64_t documents_offset;
  uint64_t tokenizer_hash;
  uint64_t checksum;
  uint64_t counted_tokens;
  char zeros[48];
  uint64_t header_checksum;
};
static_assert(sizeof(RawHeader) == kShardHeaderBytes);

constexpr const char* kMakeAgain = "Copy it again, or make it again with \"trireme data tokenize\".";
// No count may overflow a byte offset.
constexpr uint64_t kMostCount = uint64_t{1} << 56;

uint64_t aligned(uint64_t offset) {
  return (offset + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

uint64_t header_hash(const RawHeader& header) {
  return XXH3_64bits(&header, offsetof(RawHeader, header_checksum));
}

} // namespace

uint64_t ShardHeader::documents_offset() const {
  return aligned(kShardHeaderBytes + static_cast<uint64_t>(num_tokens * token_bytes));
}

uint64_t ShardHeader::mask_offset() const {
  return aligned(documents_offset() + static_cast<uint64_t>(num_documents) * sizeof(uint64_t));
}

uint64_t ShardHeader::file_bytes() const {
  return counted_tokens ? mask_offset() + static_cast<uint64_t>(num_tokens + 7) / 8
                        : documents_offset() + static_cast<uint64_t>(num_documents) * sizeof(uint64_t);
}

std::string ShardHeader::encode() const {
  RawHeader raw{};
  std::memcpy(raw.magic, kShardMagic.data(), sizeof raw.magic);
  raw.version = counted_tokens ? kShardVersion : 1;
  raw.token_bytes = static_cast<uint32_t>(token_bytes);
  raw.vocab_size = static_cast<uint64_t>(vocab_size);
  raw.num_tokens = static_cast<uint64_t>(num_tokens);
  raw.num_documents = static_cast<uint64_t>(num_documents);
  raw.documents_offset = documents_offset();
  raw.tokenizer_hash = tokenizer_hash;
  raw.checksum = checksum;
  raw.counted_tokens = static_cast<uint64_t>(counted_tokens.value_or(0));
  raw.header_checksum = header_hash(raw);
  return {reinterpret_cast<const char*>(&raw), sizeof raw};
}

bool is_shard(std::string_view head) {
  return head.starts_with(kShardMagic);
}

uint64_t read_u64(const unsigned char* at) {
  uint64_t number = 0;
  std::memcpy(&number, at, sizeof number);
  return number;
}

ShardHeader read_shard_header(std::span<const unsigned char> file, const std::filesystem::path& path) {
  if (file.size() < kShardHeaderBytes) {
    refuse_token_file(path, concat("it ends inside its header, after ", file.size(), " bytes"), kMakeAgain);
  }
  RawHeader raw;
  std::memcpy(&raw, file.data(), sizeof raw);
  if (!is_shard({raw.magic, sizeof raw.magic})) {
    refuse_token_file(path, "it is not a token shard");
  }
  if (raw.version == 0 ||
      raw.version > kShardVersion) { // before the checksum, whose place another version may have moved
    refuse_token_file(
        path, concat("it is a token shard of version ", raw.version, ", this program reads 1 to ", kShardVersion),
        "Make it again with \"trireme data tokenize\", or use a newer trireme.");
  }
  if (raw.header_checksum != header_hash(raw)) {
    refuse_token_file(path, "its header is damaged (wrong checksum)", kMakeAgain);
  }
  const bool masked = raw.version > 1;
  const bool possible = (raw.token_bytes == 2 || raw.token_bytes == 4) && raw.vocab_size > 0 &&
                        raw.vocab_size <= (uint64_t{1} << (8 * raw.token_bytes)) && raw.num_tokens > 0 &&
                        raw.num_tokens < kMostCount && raw.num_documents <= raw.num_tokens &&
                        raw.counted_tokens <= (masked ? raw.num_tokens : 0);
  const ShardHeader header{raw.token_bytes,
                           static_cast<int64_t>(raw.vocab_size),
                           static_cast<int64_t>(raw.num_tokens),
                           static_cast<int64_t>(raw.num_documents),
                           raw.tokenizer_hash,
                           raw.checksum,
                           masked ? std::optional(static_cast<int64_t>(raw.counted_tokens)) : std::nullopt};
  if (!possible || raw.documents_offset != header.documents_offset()) {
    refuse_token_file(path, "its header is damaged (impossible numbers)", kMakeAgain);
  }
  if (file.size() != header.file_bytes()) {
    refuse_token_file(path,
                      concat("it is ", file.size(), " bytes long and its header says ", header.file_bytes(),
                             file.size() < header.file_bytes() ? ": it is cut off" : ": something follows its end"),
                      kMakeAgain);
  }
  const unsigned char* const table = file.data() + header.documents_offset();
  uint64_t before = 0;
  for (uint64_t i = 0; i < raw.num_documents; ++i) {
    const uint64_t start = read_u64(table + i * sizeof(uint64_t));
    if (start >= raw.num_tokens || (i > 0 && start <= before)) {
      refuse_token_file(path, concat("its document table is damaged: entry ", i, " is ", start), kMakeAgain);
    }
    before = start;
  }
  return header;
}

bool has_right_checksum(std::span<const unsigned char> file, uint64_t checksum) {
  return XXH3_64bits(file.data() + kShardHeaderBytes, file.size() - kShardHeaderBytes) == checksum;
}

} // namespace trireme::data
