#pragma once

#include <trireme/tokenizer/normalizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// The map of characters in models of sentencepiece ("precompiled_charsmap", base64): a double array (Aoe 1989) over
/// the bytes of what is replaced, then what replaces it, each ended by a NUL. Replaces grapheme clusters of up to 5
/// bytes, then single characters, by the shortest beginning that the map has, as Hugging Face's tokenizers does.
class Precompiled final : public Normalizer {
 public:
  /// Errors: InputError at `where` for text that is not base64, or a map that is cut.
  Precompiled(std::string_view base64, const std::string& where);

  /// Errors: InputError if the map writes what is not UTF-8.
  bool apply(std::string& text) const override;
  bool is_local() const override { return true; } // by grapheme clusters

 private:
  std::optional<std::string_view> replacement(std::string_view part) const;
  void append(std::string& out, std::string_view part) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::string where_;
};

} // namespace trireme::tokenizer
