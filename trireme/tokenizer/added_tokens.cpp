#include <trireme/tokenizer/added_tokens.h>

#include <trireme/tokenizer/unicode.h>

#include <algorithm>

namespace trireme::tokenizer {
namespace {

size_t space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t last = char_before(text, end);
    if (!is_space(char_at(text, last).code)) {
      break;
    }
    end = last;
  }
  return end;
}

size_t space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if (!is_space(next.code)) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

bool is_inside_a_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(char_at(text, char_before(text, begin)).code)) ||
         (end < text.size() && is_word(char_at(text, end).code));
}

} // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  empty_ = tokens.empty();
  if (!empty_ &&
      std::ranges::all_of(tokens, [&](const AddedToken& token) { return token.content[0] == tokens[0].content[0]; })) {
    only_first_ = tokens[0].content[0];
  }
  for (AddedToken& token : tokens) {
    by_first_[static_cast<unsigned char>(token.content[0])].push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::match(std::string_view rest) const {
  for (const AddedToken& token : by_first_[static_cast<unsigned char>(rest[0])]) {
    if (rest.starts_with(token.content)) {
      return &token;
    }
  }
  return nullptr;
}

// The next place where a token may begin.
size_t AddedTokens::candidate(std::string_view text, size_t at) const {
  if (empty_) {
    return text.size();
  }
  if (only_first_) {
    return std::min(text.find(*only_first_, at), text.size());
  }
  while (at < text.size() && by_first_[static_cast<unsigned char>(text[at])].empty()) {
    ++at;
  }
  return at;
}

void AddedTokens::split(std::string_view text, FunctionRef<void(TextPart)> next) const {
  size_t done = 0;
  for (size_t at = candidate(text, 0); at < text.size();) {
    const AddedToken* const token = match(text.substr(at));
    if (token == nullptr) {
      at = candidate(text, at + 1);
      continue;
    }
    // The search continues behind the token itself; white space is only taken from the text that is kept.
    size_t start = at;
    at += token->content.size();
    if (token->single_word && is_inside_a_word(text, start, at)) {
      at = candidate(text, at);
      continue;
    }
    start = token->lstrip ? std::max(space_before(text, start), done) : start;
    if (done < start) {
      next({text.substr(done, start - done), std::nullopt});
    }
    next({text.substr(start, 0), token->id});
    done = token->rstrip ? space_after(text, at) : at;
    at = candidate(text, at);
  }
  if (done < text.size()) {
    next({text.substr(done), std::nullopt});
  }
}

} // namespace trireme::tokenizer
