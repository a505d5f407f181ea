#include <trireme/data/token_files/megatron_index.h>

#include <trireme/base/error.h>
#include <trireme/data/token_files/file_map.h>
#include <trireme/data/token_files/shard_format.h>

#include <array>
#include <cstring>
#include <string>

namespace trireme::data {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr size_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

// By code.
constexpr std::array<const char*, 9> kTypes = {"",      "uint8",   "int8",    "int16", "int32",
                                               "int64", "float64", "float32", "uint16"};

int64_t bytes_of_type(unsigned code, const std::filesystem::path& path) {
  if (code == 8) {
    return 2;
  }
  if (code == 4) {
    return 4;
  }
  const std::string name = code > 0 && code < kTypes.size() ? kTypes[code] : concat("code ", code);
  refuse_token_file(path, concat("its tokens have the type ", name, "; uint16 and int32 are read"),
                    "Make the dataset again with one of these, as Megatron's preprocess_data.py does by itself.");
}

int64_t number_at(const unsigned char* numbers, int64_t index) {
  return static_cast<int64_t>(read_u64(numbers + index * 8));
}

} // namespace

int64_t MegatronIndex::document_start(int64_t index) const {
  const int64_t sequence = number_at(document_index, index);
  return sequence == num_sequences ? num_tokens : number_at(offsets, sequence) / token_bytes;
}

bool is_megatron_index(std::string_view head) {
  return head.starts_with(kIndexMagic);
}

MegatronIndex read_megatron_index(std::span<const unsigned char> file, const std::filesystem::path& path) {
  constexpr const char* kCopyAgain = "Copy it again, or make the dataset again.";
  if (file.size() < kIndexHeaderBytes) {
    refuse_token_file(path, concat("it ends inside its header, after ", file.size(), " bytes"), kCopyAgain);
  }
  const unsigned char* const data = file.data();
  if (!is_megatron_index({reinterpret_cast<const char*>(data), kIndexMagic.size()})) {
    refuse_token_file(path, "it does not begin like an index of Megatron's (MMIDIDX)",
                      "Name a .idx file of Megatron's indexed datasets, or the .bin file beside it.");
  }
  if (const uint64_t version = read_u64(data + 9); version != 1) {
    refuse_token_file(path, concat("it has version ", version, " of Megatron's index; version 1 is read"));
  }
  MegatronIndex index;
  index.token_bytes = bytes_of_type(data[17], path);
  const uint64_t sequences = read_u64(data + 18);
  const uint64_t entries = read_u64(data + 26);
  const uint64_t rest = file.size() - kIndexHeaderBytes;
  if (sequences > rest / 12 || entries > (rest - sequences * 12) / 8) {
    refuse_token_file(path,
                      concat("it has ", file.size(), " bytes, too few for its ", sequences, " sequences and ", entries,
                             " entries of documents: it is cut off"),
                      kCopyAgain);
  }
  if (sequences == 0 || entries == 0) {
    refuse_token_file(path, "it has no sequences");
  }
  const uint64_t behind = rest - sequences * 12 - entries * 8; // modes, one byte a sequence
  if (behind != 0 && behind != sequences) {
    refuse_token_file(path, concat(behind, " bytes follow its document index"), kCopyAgain);
  }
  index.num_sequences = static_cast<int64_t>(sequences);
  index.num_documents = static_cast<int64_t>(entries) - 1;
  const unsigned char* const lengths = data + kIndexHeaderBytes;
  index.offsets = lengths + sequences * 4;
  index.document_index = index.offsets + sequences * 8;
  int64_t offset = 0;
  for (int64_t i = 0; i < index.num_sequences; ++i) {
    int32_t length = 0;
    std::memcpy(&length, lengths + i * 4, sizeof length);
    if (length < 0 || number_at(index.offsets, i) != offset) {
      refuse_token_file(path, concat("sequence ", i, " does not begin where the one before it ends"), kCopyAgain);
    }
    offset += length * index.token_bytes;
    if (offset > (int64_t{1} << 60)) {
      refuse_token_file(path, "its sequences are impossibly long", kCopyAgain);
    }
  }
  index.num_tokens = offset / index.token_bytes;
  int64_t before = 0;
  for (int64_t i = 0; i <= index.num_documents; ++i) {
    const int64_t sequence = number_at(index.document_index, i);
    if (sequence < before || sequence > index.num_sequences || (i == 0 && sequence != 0)) {
      refuse_token_file(path, concat("its document index is damaged: entry ", i, " is ", sequence), kCopyAgain);
    }
    before = sequence;
  }
  return index;
}

} // namespace trireme::data
