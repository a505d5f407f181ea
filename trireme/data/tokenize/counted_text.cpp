#include <trireme/data/tokenize/counted_text.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <optional>

namespace trireme::data {
namespace {

using nlohmann::ordered_json;
using Span = CountedText::Span;

constexpr std::string_view kSpaces = " \t\r\n";
constexpr int kMostAnswers = 250;
constexpr size_t kMostRendered = size_t{256} << 20;

constexpr const char* kMarkIt =
    "Put a chat_template.jinja into the tokenizer's folder that has {% generation %} and {% endgeneration %} around "
    "what the assistant says.";

// The assistant's parts of a conversation, from renderings of its beginnings.
class AnswerFinder {
 public:
  AnswerFinder(const chat::ChatTemplate& chat_template, const ordered_json& tools, const std::string& whole)
      : template_(chat_template), whole_(whole) {
    options_.tools = tools;
  }

  std::vector<Span> find(const ordered_json& messages) {
    std::vector<Span> spans;
    ordered_json before = ordered_json::array();
    for (const ordered_json& message : messages) {
      const bool is_answer = message.is_object() && message.value("role", ordered_json()) == "assistant";
      if (!is_answer) {
        before.push_back(message);
        continue;
      }
      if (before.empty()) {
        throw InputError("chat", "the conversation begins with the assistant, and the chat template has no marks",
                         kMarkIt);
      }
      if (std::ssize(spans) == kMostAnswers) {
        throw InputError("chat", concat("the conversation has more than ", kMostAnswers, " messages of the assistant"),
                         kMarkIt);
      }
      const size_t begin = length_of(before, /*prompt=*/true);
      before.push_back(message);
      size_t end = length_of(before, /*prompt=*/false);
      while (end > begin && kSpaces.find(whole_[end - 1]) != std::string_view::npos) {
        --end;
      }
      if (end > begin) {
        spans.emplace_back(begin, end);
      }
    }
    return spans;
  }

 private:
  // Of the rendered beginning of the conversation, which the whole begins with.
  size_t length_of(const ordered_json& messages, bool prompt) {
    options_.add_generation_prompt = prompt;
    const std::string text = template_.render(messages, options_);
    rendered_ += text.size();
    if (rendered_ > kMostRendered) {
      throw InputError(
          "chat",
          concat("finding the assistant's messages needs more than ", format_bytes(kMostRendered), " of rendered text"),
          kMarkIt);
    }
    if (!whole_.starts_with(text)) {
      throw InputError("chat",
                       concat("the chat template has no {% generation %} marks, and renders the first ",
                              messages.size(), " messages otherwise when more follow"),
                       kMarkIt);
    }
    return text.size();
  }

  const chat::ChatTemplate& template_;
  const std::string& whole_;
  chat::RenderOptions options_;
  size_t rendered_ = 0;
};

// Decodes one token as it is behind another: decoders may take a space from the first.
class TokenTexts {
 public:
  explicit TokenTexts(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer), pair_(tokenizer.encode("a")) {
    pair_.resize(std::min<size_t>(pair_.size(), 1));
    before_ = tokenizer.decode(pair_);
    pair_.push_back(0);
  }
  std::string of(int32_t id) {
    pair_.back() = id;
    std::string text = tokenizer_.decode(pair_);
    return text.starts_with(before_) ? text.substr(before_.size()) : text;
  }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<int32_t> pair_;
  std::string before_;
};

// Where the bytes of each token end in `text`; none if the tokens do not decode to it. A tokenizer may add a space
// before a token, or drop those around one.
std::optional<std::vector<size_t>> find_ends(std::string_view text, std::span<const int32_t> ids,
                                             const tokenizer::Tokenizer& tokenizer) {
  TokenTexts texts(tokenizer);
  std::vector<size_t> ends;
  ends.reserve(ids.size());
  size_t at = 0;
  for (const int32_t id : ids) {
    const std::string whole = texts.of(id);
    std::string_view token = whole;
    const auto fits = [&](size_t place) { return text.substr(place).starts_with(token); };
    if (!fits(at) && token.starts_with(' ') && text.substr(at).starts_with(token.substr(1))) {
      token.remove_prefix(1);
    }
    while (at < text.size() && !fits(at) && kSpaces.find(text[at]) != std::string_view::npos) {
      ++at;
    }
    if (!fits(at)) {
      return std::nullopt;
    }
    ends.push_back(at += token.size());
  }
  return text.find_first_not_of(kSpaces, at) == std::string_view::npos ? std::optional(ends) : std::nullopt;
}

// The number of `ids` before byte `at`.
size_t count_before(std::string_view text, size_t at, std::span<const int32_t> ids,
                    const tokenizer::Tokenizer& tokenizer) {
  std::vector<int32_t> joined = tokenizer.encode(text.substr(0, at));
  const size_t count = joined.size();
  const std::vector<int32_t> rest = tokenizer.encode(text.substr(at));
  joined.insert(joined.end(), rest.begin(), rest.end());
  if (!std::ranges::equal(joined, ids)) {
    throw InputError("data",
                     concat("tokens of ", tokenizer.describe(),
                            " go over the end of what counts, and its ids do not "
                            "decode to the text"),
                     "Put a token of the tokenizer, such as its end token, between the parts of a document.");
  }
  return count;
}

} // namespace

CountedText render_conversation(const chat::ChatTemplate& chat_template, const ordered_json& messages,
                                const ordered_json& tools) {
  chat::RenderOptions options;
  options.tools = tools;
  chat::Rendered rendered = chat_template.render_with_spans(messages, options);
  CountedText found{std::move(rendered.text), std::move(rendered.generated)};
  std::erase_if(found.counted, [](const Span& span) { return span.first >= span.second; });
  if (found.counted.empty()) {
    found.counted = AnswerFinder(chat_template, tools, found.text).find(messages);
  }
  return found;
}

std::vector<uint8_t> find_counted(const CountedText& text, std::span<const int32_t> ids,
                                  const tokenizer::Tokenizer& tokenizer) {
  std::vector<uint8_t> counted(ids.size());
  if (const auto ends = find_ends(text.text, ids, tokenizer)) {
    size_t begin = 0;
    auto span = text.counted.begin();
    for (size_t i = 0; i < ids.size(); begin = (*ends)[i++]) {
      while (span != text.counted.end() && span->second <= begin) {
        ++span;
      }
      // A token without a byte, such as a space that was added, belongs to what follows.
      counted[i] = span != text.counted.end() && span->first < std::max((*ends)[i], begin + 1);
    }
    return counted;
  }
  for (const Span& span : text.counted) {
    const size_t begin = count_before(text.text, span.first, ids, tokenizer);
    const size_t end = count_before(text.text, span.second, ids, tokenizer);
    std::fill(counted.begin() + static_cast<std::ptrdiff_t>(begin), counted.begin() + static_cast<std::ptrdiff_t>(end),
              uint8_t{1});
  }
  return counted;
}

} // namespace trireme::data
