#pragma once

#include <trireme/base/json.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// Turns tokens back into text, step by step. All members are const and thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes the tokens; those of the last step are joined.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

struct Decoders {
  std::vector<std::unique_ptr<Decoder>> steps;
  /// A single step, ByteLevel: a token's bytes depend on no other token.
  bool only_bytes = false;
};

/// Reads "decoder" of a tokenizer.json: Sequence, BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip,
/// WordPiece. Errors: InputError naming any other.
Decoders read_decoders(const JsonNode& node);

} // namespace trireme::tokenizer
