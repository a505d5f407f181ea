#pragma once

#include <trireme/data/token_cache/text_cache.h>
#include <trireme/data/tokens.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::data {

/// The documents of JSON lines as tokens, mapped from a cache, in windows as TokensDataset. A target that does not
/// count in the loss is kIgnoredTarget.
class JsonLines : public TokensDataset {
 public:
  /// `in_use` keeps the shards; `source` names the files in messages; the rest as TokensDataset. Errors: InputError for
  /// fewer than sequence_length + 1 tokens, and ids that `vocab_size` does not have.
  JsonLines(const CachedText::Split& cached, std::shared_ptr<const Descriptor> in_use, int64_t sequence_length,
            int64_t vocab_size, bool pack, std::string source);

  std::string describe() const override;

 private:
  std::string source_;
  std::shared_ptr<const Descriptor> in_use_;
};

} // namespace trireme::data
