#include <trireme/tokenizer/normalizer.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace trireme::tokenizer {
namespace {

bool is_printable(char c) {
  return c >= ' ' && c <= '~';
}

// The first place at `from` or behind it where is_local() allows a cut, or the end.
size_t cut_from(std::string_view text, size_t from) {
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    if (is_printable(text[at - 1]) && is_printable(text[at])) {
      return at;
    }
  }
  return text.size();
}

std::vector<std::string> parts_of(std::string_view text, size_t count) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = cut_from(text, std::max(text.size() * (parts.size() + 1) / count, begin + 1));
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

} // namespace

bool apply_with_threads(const Normalizer& normalizer, std::string& text, int threads, size_t least_bytes) {
  const size_t count = std::min<size_t>(static_cast<size_t>(threads), text.size() / least_bytes);
  if (count < 2 || !normalizer.is_local()) {
    return normalizer.apply(text);
  }
  std::vector<std::string> parts = parts_of(text, count);
  std::vector<std::exception_ptr> errors(parts.size());
  bool kept = true;
  const auto apply_to = [&](size_t i) {
    try {
      if (!normalizer.apply(parts[i]) && i == 0) {
        kept = false;
      }
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < parts.size(); ++i) {
      others.emplace_back(apply_to, i);
    }
    apply_to(0);
  }
  text.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (errors[i]) {
      std::rethrow_exception(errors[i]);
    }
    text += parts[i];
  }
  return kept;
}

} // namespace trireme::tokenizer
