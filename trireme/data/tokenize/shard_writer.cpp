#include <trireme/data/tokenize/shard_writer.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>
#include <utility>

namespace trireme::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kMostDocuments = size_t{8} << 20;

std::string name_of(size_t shard) {
  std::string digits = std::to_string(shard);
  return concat("tokens-", std::string(5 - std::min<size_t>(digits.size(), 5), '0'), digits, ".bin");
}

} // namespace

void ShardWriter::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

ShardWriter::ShardWriter(Options options) : options_(std::move(options)), hash_(XXH3_createState()) {
  if (!hash_) {
    throw std::bad_alloc();
  }
  buffer_.reserve(kBufferBytes);
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::fail(const char* what) const {
  throw Error("data", concat("cannot ", what, ' ', path_.string(), ": ", describe_write_failure(errno, path_, 0)),
              "Nothing was made; what was written is removed.");
}

void ShardWriter::open_shard() {
  constexpr mode_t kMode = 0644;
  path_ = options_.folder / name_of(shards_.size());
  file_ = create_new(path_, O_WRONLY, kMode);
  if (!file_) {
    fail("create");
  }
  XXH3_64bits_reset(hash_.get());
  num_tokens_ = 0;
  documents_.clear();
  mask_.clear();
  uncounted_ = 0;
  written_ = kShardHeaderBytes;
  buffer_.assign(kShardHeaderBytes, '\0'); // written last
}

// The header is no part of the checksum: what follows it has all been through update().
void ShardWriter::write(const char* data, size_t bytes) {
  XXH3_64bits_update(hash_.get(), data, bytes);
  written_ += bytes;
  buffer_.append(data, bytes);
  if (buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void ShardWriter::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t count = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno != EINTR) {
      fail("write");
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  buffer_.clear();
}

void ShardWriter::write_tokens(std::span<const int32_t> tokens) {
  if (options_.token_bytes == 4) {
    return write(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  }
  std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
  write(reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(uint16_t));
}

void ShardWriter::pad_to(uint64_t offset) {
  const std::string padding(static_cast<size_t>(offset - written_), '\0');
  write(padding.data(), padding.size());
}

// Of the tokens from num_tokens_ on.
void ShardWriter::mask_tokens(std::span<const uint8_t> counted) {
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] == 0) {
      const size_t token = static_cast<size_t>(num_tokens_) + i;
      mask_.resize(std::max(mask_.size(), token / 8 + 1));
      mask_[token / 8] |= static_cast<uint8_t>(1 << token % 8);
      ++uncounted_;
    }
  }
}

void ShardWriter::append(std::span<const int32_t> tokens, std::span<const uint8_t> counted, bool begins) {
  while (!tokens.empty()) {
    if (file_ && (num_tokens_ == options_.shard_tokens || (begins && documents_.size() == kMostDocuments))) {
      finish_shard();
    }
    if (!file_) {
      open_shard();
    }
    if (std::exchange(begins, false)) {
      documents_.push_back(static_cast<uint64_t>(num_tokens_));
    }
    constexpr int64_t kAtOnce = 1 << 18;
    const int64_t count = std::min({std::ssize(tokens), options_.shard_tokens - num_tokens_, kAtOnce});
    write_tokens(tokens.first(static_cast<size_t>(count)));
    if (!counted.empty()) {
      mask_tokens(counted.first(static_cast<size_t>(count)));
      counted = counted.subspan(static_cast<size_t>(count));
    }
    num_tokens_ += count;
    tokens = tokens.subspan(static_cast<size_t>(count));
  }
}

void ShardWriter::finish_shard() {
  ShardHeader header{.token_bytes = options_.token_bytes,
                     .vocab_size = options_.vocab_size,
                     .num_tokens = num_tokens_,
                     .num_documents = std::ssize(documents_),
                     .tokenizer_hash = options_.tokenizer_hash};
  pad_to(header.documents_offset());
  write(reinterpret_cast<const char*>(documents_.data()), documents_.size() * sizeof(uint64_t));
  if (uncounted_ > 0) {
    header.counted_tokens = num_tokens_ - uncounted_;
    pad_to(header.mask_offset());
    mask_.resize(static_cast<size_t>(num_tokens_ + 7) / 8);
    for (uint8_t& bits : mask_) {
      bits = static_cast<uint8_t>(~bits);
    }
    if (num_tokens_ % 8 != 0) { // beyond the last token
      mask_.back() &= static_cast<uint8_t>((1 << num_tokens_ % 8) - 1);
    }
    write(reinterpret_cast<const char*>(mask_.data()), mask_.size());
  }
  flush();
  header.checksum = XXH3_64bits_digest(hash_.get());
  const std::string encoded = header.encode();
  if (::pwrite(file_.get(), encoded.data(), encoded.size(), 0) != std::ssize(encoded) || ::fsync(file_.get()) != 0 ||
      ::close(file_.release()) != 0) {
    fail("write");
  }
  shards_.push_back({path_.filename().string(), header.num_tokens, header.num_documents, header.checksum});
}

std::vector<ShardIndex::Shard> ShardWriter::finish() {
  if (file_) {
    finish_shard();
  }
  return shards_;
}

} // namespace trireme::data
