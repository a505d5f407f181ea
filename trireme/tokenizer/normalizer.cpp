#include <trireme/tokenizer/normalizer.h>

#include <trireme/tokenizer/byte_alphabet.h>
#include <trireme/tokenizer/expression.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/precompiled.h>
#include <trireme/tokenizer/unicode.h>

#include <optional>
#include <utility>

namespace trireme::tokenizer {
namespace {

// Replaces every character by what `change(out, code)` appends. Returns whether the first one was not removed.
template <typename Change>
bool for_each_char(std::string& text, Change&& change) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  bool kept = true;
  for (size_t at = 0; at < text.size();) {
    const Char next = char_at(text, at);
    change(out, next.code);
    kept = kept && !out.empty();
    at += next.bytes;
  }
  text = std::move(out);
  return kept;
}

struct LocalNormalizer : Normalizer {
  bool is_local() const final { return true; }
};

class Form final : public LocalNormalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  bool apply(std::string& text) const override {
    normalize(text, form_);
    return true;
  }

 private:
  NormalForm form_;
};

class Lowercase final : public LocalNormalizer {
 public:
  bool apply(std::string& text) const override { return for_each_char(text, append_lower); }
};

class StripAccents final : public LocalNormalizer {
 public:
  bool apply(std::string& text) const override {
    if (is_ascii(text)) {
      return true;
    }
    return for_each_char(text, [](std::string& out, char32_t code) {
      if (!is_mark(code)) {
        append_utf8(out, code);
      }
    });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string& text) const override {
    size_t begin = 0;
    size_t end = text.size();
    while (left_ && begin < end && is_space(char_at(text, begin).code)) {
      begin += char_at(text, begin).bytes;
    }
    while (right_ && end > begin) {
      const size_t last = char_before(text, end);
      if (!is_space(char_at(text, last).code)) {
        break;
      }
      end = last;
    }
    text = text.substr(begin, end - begin);
    return begin == 0;
  }
  bool is_local() const override { return false; }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string& text) const override {
    if (!text.empty()) {
      text.insert(0, prefix_);
    }
    return true;
  }
  bool is_local() const override { return false; }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Expression expression, std::string content)
      : expression_(std::move(expression)), content_(std::move(content)) {}
  bool apply(std::string& text) const override {
    // What replaces several characters begins with the last of them.
    const std::optional<Match> first = expression_.find(text, 0);
    const bool kept =
        !first || first->begin > 0 || first->end == 0 || (first->end == char_at(text, 0).bytes && !content_.empty());
    text = replace_matches(text, expression_, content_);
    return kept;
  }
  bool is_local() const override { return false; }

 private:
  Expression expression_;
  std::string content_;
};

class ByteLevel final : public LocalNormalizer {
 public:
  bool apply(std::string& text) const override {
    std::string out;
    append_byte_chars(out, text);
    text = std::move(out);
    return true;
  }
};

// The rules of sentencepiece's "nmt" normalization.
class Nmt final : public LocalNormalizer {
 public:
  bool apply(std::string& text) const override {
    return for_each_char(text, [](std::string& out, char32_t code) {
      const bool removed = (code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) || code == 0x7f ||
                           code == 0x8f || code == 0x9f;
      const bool space = code == 0x9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
                         (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                         code == 0xfeff || code == 0xfffd;
      if (space) {
        out += ' ';
      } else if (!removed) {
        append_utf8(out, code);
      }
    });
  }
};

// The first steps of BERT's original tokenizer (Devlin et al. 2018).
class Bert final : public LocalNormalizer {
 public:
  struct Options {
    bool clean_text;
    bool chinese;
    bool strip_accents;
    bool lowercase;
  };
  explicit Bert(Options options) : options_(options) {}

  bool apply(std::string& text) const override {
    bool kept = true;
    if (options_.clean_text || options_.chinese) {
      kept = for_each_char(text, [this](std::string& out, char32_t code) { clean(out, code); });
    }
    if (options_.strip_accents && !is_ascii(text)) {
      normalize(text, NormalForm::nfd);
    }
    if (options_.strip_accents || options_.lowercase) {
      kept &= for_each_char(text, [this](std::string& out, char32_t code) {
        if (options_.strip_accents && is_nonspacing_mark(code)) {
          return;
        }
        options_.lowercase ? append_lower(out, code) : append_utf8(out, code);
      });
    }
    return kept;
  }

 private:
  static bool is_chinese(char32_t code) {
    return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
           (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
           (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
           (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
  }

  void clean(std::string& out, char32_t code) const {
    if (code >= ' ' && code < 0x7f) {
      out += static_cast<char>(code);
      return;
    }
    if (options_.clean_text) {
      const bool line = code == '\t' || code == '\n' || code == '\r';
      if (line || (is_space(code) && !is_control(code))) {
        out += ' ';
        return;
      }
      if (code == 0 || code == 0xfffd || is_control(code)) {
        return;
      }
    }
    const bool alone = options_.chinese && is_chinese(code);
    out += alone ? " " : "";
    append_utf8(out, code);
    out += alone ? " " : "";
  }

  Options options_;
};

std::unique_ptr<Normalizer> read_one(const std::string& type, ObjectReader& reader) {
  static constexpr std::pair<const char*, NormalForm> kForms[] = {
      {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      return std::make_unique<Form>(form);
    }
  }
  if (type == "Lowercase") {
    return std::make_unique<Lowercase>();
  }
  if (type == "StripAccents") {
    return std::make_unique<StripAccents>();
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>();
  }
  if (type == "Nmt") {
    return std::make_unique<Nmt>();
  }
  if (type == "Strip") {
    const bool left = reader.require_as<bool>("strip_left");
    return std::make_unique<Strip>(left, reader.require_as<bool>("strip_right"));
  }
  if (type == "Prepend") {
    return std::make_unique<Prepend>(reader.require_as<std::string>("prepend"));
  }
  if (type == "Replace") {
    Expression pattern = read_pattern(reader);
    return std::make_unique<Replace>(std::move(pattern), reader.require_as<std::string>("content"));
  }
  if (type == "Precompiled") {
    return std::make_unique<Precompiled>(reader.require_as<std::string>("precompiled_charsmap"), reader.node().where());
  }
  if (type == "BertNormalizer") {
    const bool lowercase = reader.require_as<bool>("lowercase");
    return std::make_unique<Bert>(Bert::Options{reader.require_as<bool>("clean_text"),
                                                reader.require_as<bool>("handle_chinese_chars"),
                                                reader.maybe<bool>("strip_accents").value_or(lowercase), lowercase});
  }
  refuse_type(reader.node(), "normalizer", type,
              "Supported: Sequence, BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, "
              "Prepend, Replace, Strip, StripAccents.");
}

} // namespace

Normalizers read_normalizers(const JsonNode& node) {
  Normalizers steps;
  for_each_part(node, "normalizers",
                [&](const std::string& type, ObjectReader& reader) { steps.push_back(read_one(type, reader)); });
  return steps;
}

} // namespace trireme::tokenizer
