#pragma once

#include <trireme/base/json.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// Changes text before it is split into words. All members are const and thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Changes `text`, which is valid UTF-8 and stays so. Returns whether it still begins where it began: false if its
  /// first character was removed.
  virtual bool apply(std::string& text) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

/// Reads "normalizer" of a tokenizer.json as steps, in order: Sequence, BertNormalizer, ByteLevel, Lowercase, NFC, NFD,
/// NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip, StripAccents. Errors: InputError naming any other.
Normalizers read_normalizers(const JsonNode& node);

} // namespace trireme::tokenizer
