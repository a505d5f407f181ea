#include <trireme/data/json_lines.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/data/windows.h>

#include <utility>

namespace trireme::data {
namespace {

const CachedText::Split& checked(const CachedText::Split& cached, int64_t sequence_length, const std::string& source) {
  count_windows(cached.tokens, sequence_length, source); // names the files in its error, not the shards
  return cached;
}

} // namespace

JsonLines::JsonLines(const CachedText::Split& cached, std::shared_ptr<const Descriptor> in_use, int64_t sequence_length,
                     int64_t vocab_size, bool pack, std::string source)
    : TokensDataset(checked(cached, sequence_length, source).shards, sequence_length, vocab_size, 0, pack),
      source_(std::move(source)),
      in_use_(std::move(in_use)) {}

std::string JsonLines::describe() const {
  return concat("JSON lines: ", format_count(num_tokens()), " tokens in ", format_count(size()), " samples (", source_,
                ')');
}

} // namespace trireme::data
