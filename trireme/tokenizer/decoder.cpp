#include <trireme/tokenizer/decoder.h>

#include <trireme/base/error.h>
#include <trireme/tokenizer/byte_alphabet.h>
#include <trireme/tokenizer/expression.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/unicode.h>

#include <utility>

namespace trireme::tokenizer {
namespace {

constexpr const char* kReplacementChar = "\xEF\xBF\xBD";

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) {
    all += token;
  }
  tokens.assign(1, std::move(all));
}

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override { fuse(tokens); }
};

class ByteLevel final : public Decoder {
 public:
  /// Steps behind this one need valid UTF-8.
  void make_valid() { make_valid_ = true; }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      token = bytes_of_chars(token).value_or(token);
    }
    fuse(tokens);
    if (make_valid_) {
      tokens[0] = replace_invalid_utf8(tokens[0]);
    }
  }

 private:
  bool make_valid_ = false;
};

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

// "<0x0A>" is a byte; bytes in a row that are not UTF-8 become one U+FFFD each.
class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (valid_utf8_prefix(bytes) == bytes.size()) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), kReplacementChar);
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token[5] == '>' &&
                           hex_digit(token[3]) >= 0 && hex_digit(token[4]) >= 0;
      if (is_byte) {
        bytes += static_cast<char>(hex_digit(token[3]) << 4 | hex_digit(token[4]));
        continue;
      }
      if (!bytes.empty()) {
        flush();
      }
      out.push_back(std::move(token));
    }
    if (!bytes.empty()) {
      flush();
    }
    tokens = std::move(out);
  }
};

class Replace final : public Decoder {
 public:
  Replace(Expression pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      if (!token.empty()) {
        token = replace_matches(token, pattern_, content_);
      }
    }
  }

 private:
  Expression pattern_;
  std::string content_;
};

// Removes up to `start` and `stop` of a character from the ends of every token.
class Strip final : public Decoder {
 public:
  Strip(std::string content, int64_t start, int64_t stop) : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) {
        rest.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) {
        rest.remove_suffix(content_.size());
      }
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos && !from.empty(); at = text.find(from, done)) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
  return out;
}

class Metaspace final : public Decoder {
 public:
  Metaspace(std::string replacement, bool prepended) : replacement_(std::move(replacement)), prepended_(prepended) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], replacement_, i == 0 && prepended_ ? "" : " ");
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class WordPiece final : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        tokens[i] = tokens[i].starts_with(prefix_) ? tokens[i].substr(prefix_.size()) : concat(' ', tokens[i]);
      }
      if (cleanup_) {
        clean_up(tokens[i]);
      }
    }
  }

 private:
  // Of English text.
  static void clean_up(std::string& token) {
    static constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) {
      if (token.find(from) != std::string::npos) {
        token = replaced(token, from, to);
      }
    }
  }

  std::string prefix_;
  bool cleanup_;
};

class Bpe final : public Decoder {
 public:
  explicit Bpe(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

std::string read_char(ObjectReader& reader, const std::string& key, const std::string& default_value) {
  const std::string text = reader.get(key, default_value);
  if (text.empty() || char_at(text, 0).bytes != text.size()) {
    fail_at(reader.node().where(), concat('"', key, "\" must be one character, got \"", text, '"'));
  }
  return text;
}

std::unique_ptr<Decoder> read_one(const std::string& type, ObjectReader& reader) {
  if (type == "Fuse") {
    return std::make_unique<Fuse>();
  }
  if (type == "ByteFallback") {
    return std::make_unique<ByteFallback>();
  }
  if (type == "Replace") {
    Expression pattern = read_pattern(reader);
    return std::make_unique<Replace>(std::move(pattern), reader.require_as<std::string>("content"));
  }
  if (type == "Strip") {
    const std::string content = read_char(reader, "content", "");
    const auto start = reader.require_as<int64_t>("start");
    return std::make_unique<Strip>(content, start, reader.require_as<int64_t>("stop"));
  }
  if (type == "Metaspace") {
    const std::string replacement = read_char(reader, "replacement", "\xe2\x96\x81");
    const std::string scheme = reader.word("prepend_scheme", "always", {"always", "first", "never"});
    const bool prepended = reader.get("add_prefix_space", true) && scheme != "never";
    reader.find("split"); // of the pre-tokenizer, as str_rep of old files
    reader.find("str_rep");
    return std::make_unique<Metaspace>(replacement, prepended);
  }
  if (type == "WordPiece") {
    const std::string prefix = reader.get<std::string>("prefix", "##");
    return std::make_unique<WordPiece>(prefix, reader.get("cleanup", true));
  }
  if (type == "BPEDecoder") {
    return std::make_unique<Bpe>(reader.get<std::string>("suffix", "</w>"));
  }
  refuse_type(reader.node(), "decoder", type,
              "Supported: Sequence, BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip, WordPiece.");
}

} // namespace

Decoders read_decoders(const JsonNode& node) {
  Decoders made;
  ByteLevel* last = nullptr;
  for_each_part(node, "decoders", [&](const std::string& type, ObjectReader& reader) {
    if (last != nullptr) {
      last->make_valid();
      last = nullptr;
    }
    if (type != "ByteLevel") {
      made.steps.push_back(read_one(type, reader));
      return;
    }
    auto step = std::make_unique<ByteLevel>();
    for (const char* of_encoding : {"trim_offsets", "add_prefix_space", "use_regex"}) {
      reader.find(of_encoding);
    }
    last = step.get();
    made.steps.push_back(std::move(step));
  });
  made.only_bytes = last != nullptr && made.steps.size() == 1;
  return made;
}

} // namespace trireme::tokenizer
