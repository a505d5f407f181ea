#pragma once

#include <trireme/base/json.h>

#include <cstddef>
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
  /// Whether a text cut between two printable ASCII characters is changed in parts to the same.
  virtual bool is_local() const = 0;
};

/// The same as apply(); a long text is cut for up to `threads` threads where the normalizer is local. A thread gets
/// `least_bytes`: for less it costs more than it saves.
bool apply_with_threads(const Normalizer& normalizer, std::string& text, int threads,
                        size_t least_bytes = size_t{64} << 10);

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

/// Reads "normalizer" of a tokenizer.json as steps, in order: Sequence, BertNormalizer, ByteLevel, Lowercase, NFC, NFD,
/// NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip, StripAccents. Errors: InputError naming any other.
Normalizers read_normalizers(const JsonNode& node);

} // namespace trireme::tokenizer
