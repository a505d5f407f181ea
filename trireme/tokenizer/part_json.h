#pragma once

#include <trireme/base/json.h>
#include <trireme/tokenizer/expression.h>
#include <trireme/tokenizer/function_ref.h>

#include <string>
#include <string_view>

namespace trireme::tokenizer {

// What the readers of the parts of a tokenizer.json share.

/// Throws InputError("tokenizer", "<where>: happened", next).
[[noreturn]] void fail_at(const std::string& where, const std::string& happened, const std::string& next = "");

/// "tokenizer.json" for "tokenizer.json:3:14".
std::string source_of(const std::string& where);

/// The part's "type". Errors: InputError if `node` is no object with one.
std::string type_of(const JsonNode& node);

/// Refuses `the <kind> "<type>" is not supported`.
[[noreturn]] void refuse_type(const JsonNode& node, const char* kind, const std::string& type, const std::string& next);

/// Calls `read` with the type and a reader of the part; of a "Sequence" with each of its `members`, in order, at any
/// depth. Refuses keys that `read` has not asked for.
void for_each_part(const JsonNode& node, const char* members,
                   FunctionRef<void(const std::string& type, ObjectReader& reader)> read);

/// "pattern": {"String": "..."} or {"Regex": "..."}.
Expression read_pattern(ObjectReader& reader);

/// The most bytes that `bytes` of text may become: no tokenizer needs more, and a file must not ask for all memory.
constexpr size_t most_bytes_for(size_t bytes) {
  return 100 * bytes + (size_t{16} << 10);
}

/// `text` with every match replaced. Errors: InputError for more than most_bytes_for() the text.
std::string replace_matches(std::string_view text, const Expression& expression, std::string_view content);

} // namespace trireme::tokenizer
