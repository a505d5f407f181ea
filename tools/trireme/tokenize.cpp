#include "tokenize.h"

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/tokenizer.h>
#include <trireme/tokenizer/unicode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace trireme::tools {
namespace {

int32_t id_of(int64_t number, const std::string& where) {
  if (number < 0 || number > std::numeric_limits<int32_t>::max()) {
    throw InputError("tokenize", concat(where, ": ", number, " is not a token id"));
  }
  return static_cast<int32_t>(number);
}

// [1, 2], {"ids": [1, 2]} or 1 2.
std::vector<int32_t> read_ids(const std::string& line, const std::string& where) {
  std::vector<int32_t> ids;
  const size_t first = line.find_first_not_of(" \t\r");
  if (first != std::string::npos && (line[first] == '[' || line[first] == '{')) {
    const JsonNode root = JsonNode::parse(line, where);
    const JsonNode* const array = root.is_object() ? root.find("ids") : &root;
    if (array == nullptr) {
      throw InputError("tokenize", concat(where, ": the object has no \"ids\""));
    }
    for (const JsonNode& id : array->elements()) {
      ids.push_back(id_of(id.as_integer(), where));
    }
    return ids;
  }
  for (size_t at = first; at != std::string::npos; at = line.find_first_not_of(" \t\r", at)) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(line.data() + at, line.data() + end, number);
    if (error != std::errc() || stop != line.data() + end) {
      throw InputError("tokenize",
                       concat(where, ": expected a token id, got \"",
                              printable(line.substr(at, std::min<size_t>(end - at, 40))), '"'),
                       "With --decode a line is [1, 2], 1 2 or an object with \"ids\".");
    }
    ids.push_back(id_of(number, where));
    at = end;
  }
  return ids;
}

std::string decode(const tokenizer::Tokenizer& tokenizer, const std::string& line, const std::string& where,
                   bool skip_special_tokens) {
  const std::vector<int32_t> ids = read_ids(line, where);
  try {
    return tokenizer.decode(ids, skip_special_tokens);
  } catch (const InputError& error) {
    throw InputError("tokenize", concat(where, ": ", error.what()));
  }
}

void print_ids(const std::vector<int32_t>& ids, bool json) {
  std::string out = json ? "{\"ids\": [" : "";
  for (size_t i = 0; i < ids.size(); ++i) {
    out += i == 0 ? "" : json ? ", " : " ";
    out += std::to_string(ids[i]);
  }
  std::cout << out << (json ? "]}\n" : "\n");
}

} // namespace

int tokenize(const TokenizeCommand& command) {
  const auto tokenizer = tokenizer::make_tokenizer(command.tokenizer);
  std::ios::sync_with_stdio(false);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (!command.decode) {
      print_ids(tokenizer->encode(line, command.special), command.json);
      continue;
    }
    const std::string text = decode(*tokenizer, line, concat("stdin:", number), !command.special);
    if (command.json) {
      std::cout << nlohmann::json{{"text", tokenizer::replace_invalid_utf8(text)}}.dump() << '\n';
    } else {
      std::cout << text << '\n';
    }
  }
  return 0;
}

} // namespace trireme::tools
