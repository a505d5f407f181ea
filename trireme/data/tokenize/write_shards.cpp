#include <trireme/data/tokenize/write_shards.h>

#include <trireme/base/error.h>
#include <trireme/data/token_files/tokenizer_hash.h>
#include <trireme/data/tokenize/block_maker.h>
#include <trireme/data/tokenize/document_reader.h>
#include <trireme/data/tokenize/encode_blocks.h>
#include <trireme/data/tokenize/input_stamp.h>
#include <trireme/data/tokenize/line_encoder.h>
#include <trireme/data/tokenize/part_joiner.h>
#include <trireme/data/tokenize/shard_writer.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <algorithm>
#include <span>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

std::optional<ShardIndex::EndToken> find_end_token(const TokenizeOptions& options,
                                                   const tokenizer::Tokenizer& tokenizer) {
  if (options.end_token == "none") {
    return std::nullopt;
  }
  const auto found = options.end_token ? tokenizer::end_token_named(*options.end_token, tokenizer)
                                       : tokenizer::end_token_of(options.tokenizer, tokenizer);
  return found ? std::optional(ShardIndex::EndToken{found->text, found->id}) : std::nullopt;
}

// Reads the files and hands their documents over as blocks.
class Producer {
 public:
  /// `stamps`: of the inputs as they were at the start.
  Producer(const TokenizeOptions& options, const std::vector<InputStamp>& stamps, const GiveBlock& give_block)
      : options_(options),
        stamps_(stamps),
        give_(give_block),
        maker_([this](Block block) { give(std::move(block)); }) {}

  void run() {
    try {
      for (; input_ < options_.inputs.size() && !stopped_; ++input_) {
        read(options_.inputs[input_]);
        stamps_[input_].check();
      }
    } catch (...) {
      Block failed; // with the number of its file
      failed.error = std::current_exception();
      give(std::move(failed));
    }
  }

 private:
  void read(const fs::path& path) {
    DocumentReader reader(path, options_.lines.keys);
    DocumentPiece piece;
    const int64_t before = bytes_read_;
    while (!stopped_ && reader.next(piece, kBlockBytes)) {
      bytes_read_ = before + reader.bytes_read();
      maker_.add(std::move(piece));
    }
    bytes_read_ = before + reader.bytes_read();
    maker_.flush();
  }

  void give(Block block) {
    block.input = input_;
    block.bytes_read = bytes_read_;
    stopped_ = !give_(std::move(block));
  }

  const TokenizeOptions& options_;
  const std::vector<InputStamp>& stamps_;
  const GiveBlock& give_;
  BlockMaker maker_;
  size_t input_ = 0;
  int64_t bytes_read_ = 0;
  bool stopped_ = false;
};

// Takes encoded blocks in order, and writes their documents.
class Consumer {
 public:
  Consumer(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer, ShardIndex& index,
           ShardWriter& writer)
      : options_(options),
        index_(index),
        writer_(writer),
        joiner_(tokenizer, [this](std::span<const int32_t> ids) { add(ids, {}); }) {}

  void take(Block block) {
    if (block.error) {
      rethrow(block);
    }
    input_ = block.input;
    if (block.is_part) {
      index_.text_bytes += static_cast<int64_t>(block.text.size() - block.overlap);
      const bool ends = block.ends_document;
      joiner_.add(std::move(block), options_.inputs[input_].string());
      if (ends) {
        end_document(/*has_end=*/false);
      }
      return;
    }
    index_.text_bytes += block.text_bytes;
    size_t begin = 0;
    const std::span<const uint8_t> counted = block.counted;
    for (size_t i = 0; i < block.id_ends.size(); ++i) {
      const size_t count = block.id_ends[i] - begin;
      add(std::span(block.ids).subspan(begin, count), counted.empty() ? counted : counted.subspan(begin, count));
      end_document(block.have_end[i]);
      begin += count;
    }
  }
  int64_t uncounted_tokens() const { return uncounted_tokens_; }
  int64_t empty_documents() const { return empty_documents_; }
  int64_t joined_parts() const { return joiner_.num_joined(); }

 private:
  // The tokenizer does not know the file.
  [[noreturn]] void rethrow(const Block& block) const {
    try {
      std::rethrow_exception(block.error);
    } catch (const InputError& error) {
      const std::string name = options_.inputs[block.input].string();
      const std::string what = error.what();
      if (what.find(name) != std::string::npos) {
        throw;
      }
      throw InputError("data", concat(name, ": ", what));
    }
  }

  // `counted`: as EncodedLine::counted.
  void add(std::span<const int32_t> ids, std::span<const uint8_t> counted) {
    writer_.append(ids, counted, /*begins=*/!begun_ && !ids.empty());
    begun_ |= !ids.empty();
    uncounted_tokens_ += std::ranges::count(counted, uint8_t{0});
    index_.tokens += std::ssize(ids);
  }

  void end_document(bool has_end) {
    if (!begun_) {
      ++empty_documents_;
      return;
    }
    if (index_.end_token && !has_end) {
      add(std::span(&index_.end_token->id, 1), {});
    }
    begun_ = false;
    ++index_.documents;
    ++index_.inputs[input_].documents;
  }

  const TokenizeOptions& options_;
  ShardIndex& index_;
  ShardWriter& writer_;
  PartJoiner joiner_;
  size_t input_ = 0;
  bool begun_ = false; // the document has a token
  int64_t empty_documents_ = 0;
  int64_t uncounted_tokens_ = 0;
};

void encode_all(const TokenizeOptions& options, const std::vector<InputStamp>& stamps,
                const tokenizer::Tokenizer& tokenizer, const LineEncoder& lines, ShardWriter& writer,
                TokenizeResult& result) {
  ShardIndex& index = result.index;
  Consumer consumer(options, tokenizer, index, writer);
  TokenizeProgress progress;
  for (const ShardIndex::Input& input : index.inputs) {
    progress.bytes_total += input.bytes;
  }
  encode_blocks(
      options.threads, [&](const GiveBlock& give) { Producer(options, stamps, give).run(); },
      [&](Block& block) { encode_block(block, tokenizer, lines, options.inputs[block.input].string()); },
      [&](Block block) {
        check_stop(options.stop, "tokenizing");
        progress.bytes_read = block.bytes_read;
        consumer.take(std::move(block));
        progress.documents = index.documents;
        progress.tokens = index.tokens;
        if (options.progress) {
          options.progress(progress);
        }
      });
  if (consumer.uncounted_tokens() > 0) {
    index.counted_tokens = index.tokens - consumer.uncounted_tokens();
  }
  result.empty_documents = consumer.empty_documents();
  result.joined_parts = consumer.joined_parts();
}

} // namespace

TokenizeResult write_shards(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer,
                            const std::function<fs::path()>& folder) {
  TokenizeResult result;
  ShardIndex& index = result.index;
  index.tokenizer = options.tokenizer;
  index.tokenizer_hash = tokenizer_hash(options.tokenizer);
  index.vocab_size = tokenizer.vocab_size();
  index.token_bytes = token_bytes_of(index.vocab_size);
  index.end_token = find_end_token(options, tokenizer);
  const LineEncoder lines(tokenizer, options.tokenizer, options.lines);
  std::vector<InputStamp> stamps;
  for (const fs::path& input : options.inputs) { // all, before hours of work
    stamps.emplace_back(input);
    const DocumentReader reader(input, options.lines.keys);
    index.inputs.push_back({input.string(), static_cast<int64_t>(fs::file_size(input)), 0});
  }
  ShardWriter writer({folder(), index.token_bytes, index.vocab_size, index.tokenizer_hash, options.shard_tokens});
  encode_all(options, stamps, tokenizer, lines, writer, result);
  if (index.tokens == 0) {
    throw InputError("data",
                     concat(options.inputs.size() == 1 ? concat(options.inputs[0].string(), " has")
                                                       : concat(options.inputs.size(), " files have"),
                            " no token"),
                     "Name files with text in them.");
  }
  index.shards = writer.finish();
  return result;
}

} // namespace trireme::data
