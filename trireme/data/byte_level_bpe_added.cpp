#include <trireme/data/byte_level_bpe_added.h>

#include <trireme/data/byte_level_bpe_split.h>

#include <algorithm>

namespace trireme::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : empty_(tokens.empty()) {
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (AddedToken& token : tokens) {
    by_first_[static_cast<unsigned char>(token.content.at(0))].push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::match(std::string_view rest) const {
  for (const AddedToken& token : by_first_[static_cast<unsigned char>(rest[0])]) {
    if (rest.substr(0, token.content.size()) == token.content) {
      return &token;
    }
  }
  return nullptr;
}

std::vector<TextPart> AddedTokens::split(std::string_view text) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t at = 0; !empty_ && at < text.size();) {
    const AddedToken* token = match(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    // Continues the search after the token itself; white space is only removed from the text that is kept.
    const size_t start = token->lstrip ? space_before(text, at) : at;
    at += token->content.size();
    if (done < start) {
      parts.push_back({text.substr(done, start - done), std::nullopt});
    }
    parts.push_back({"", token->id});
    done = token->rstrip ? space_after(text, at) : at;
  }
  if (done < text.size()) {
    parts.push_back({text.substr(done), std::nullopt});
  }
  return parts;
}

} // namespace trireme::data
