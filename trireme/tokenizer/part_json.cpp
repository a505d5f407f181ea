#include <trireme/tokenizer/part_json.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

namespace trireme::tokenizer {

void fail_at(const std::string& where, const std::string& happened, const std::string& next) {
  throw InputError("tokenizer", concat(where, ": ", happened), next);
}

std::string source_of(const std::string& where) {
  const size_t column = where.rfind(':');
  const size_t line = column == std::string::npos || column == 0 ? column : where.rfind(':', column - 1);
  return line == std::string::npos ? where : where.substr(0, line);
}

std::string type_of(const JsonNode& node) {
  const JsonNode* const type = node.is_object() ? node.find("type") : nullptr;
  if (type == nullptr) {
    fail_at(node.where(), concat(node.path(), " is no object with a \"type\""));
  }
  return type->as_string();
}

void refuse_type(const JsonNode& node, const char* kind, const std::string& type, const std::string& next) {
  fail_at(node.where(), concat("the ", kind, " \"", printable(type), "\" is not supported"), next);
}

void for_each_part(const JsonNode& node, const char* members,
                   FunctionRef<void(const std::string& type, ObjectReader& reader)> read) {
  const std::string type = type_of(node);
  ObjectReader reader(node);
  reader.find("type");
  if (type == "Sequence") {
    for (const JsonNode& member : reader.require(members).elements()) {
      for_each_part(member, members, read);
    }
  } else {
    read(type, reader);
  }
  reader.finish();
}

Expression read_pattern(ObjectReader& reader) {
  const JsonNode& pattern = reader.require("pattern");
  ObjectReader choice(pattern);
  const JsonNode* const text = choice.find("String");
  const JsonNode* const expression = choice.find("Regex");
  choice.finish();
  if ((text == nullptr) == (expression == nullptr)) {
    fail_at(pattern.where(), "the pattern has neither \"String\" nor \"Regex\", or both");
  }
  return text != nullptr ? Expression::literal(text->as_string())
                         : Expression(expression->as_string(), expression->where());
}

std::string replace_matches(std::string_view text, const Expression& expression, std::string_view content) {
  std::string out;
  size_t done = 0;
  Matches matches(expression, text);
  while (const auto match = matches.next()) {
    out += text.substr(done, match->begin - done);
    out += content;
    done = match->end;
    if (out.size() > most_bytes_for(text.size())) {
      throw InputError("tokenizer",
                       concat("replacing makes more than ", most_bytes_for(text.size()), " bytes of ", text.size()));
    }
  }
  out += text.substr(done);
  return out;
}

} // namespace trireme::tokenizer
