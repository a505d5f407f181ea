#pragma once

#include <trireme/chat/budget.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's str on UTF-8: positions count code points. Text is valid UTF-8.
namespace trireme::chat {

/// The number of code points. Cost: one pass.
size_t length(std::string_view text);
/// The first byte of the first and of the last `wanted`; npos: none. Cost: linear, whatever the texts are.
size_t find_first(std::string_view text, std::string_view wanted);
size_t find_last(std::string_view text, std::string_view wanted);
/// The byte at which code point `index` begins; text.size() past the end.
size_t byte_of(std::string_view text, size_t index);

/// str.isspace() of one code point. Four controls more than Unicode's White_Space.
bool is_space(char32_t code);

enum class Side { both, left, right };
/// str.strip(), lstrip() and rstrip(); without `chars`, spaces. Cost: one pass over each.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars = {});

/// str.lower() and the like, with Unicode's simple mappings.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

/// str.replace(). `most`: replacements; negative: all. Errors: TemplateError for a text that is too long.
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most, Budget& budget);

/// str.split(): at `separator` (not empty), or without one at spaces. `most`: cuts; negative: all. Errors:
/// TemplateError for too many parts.
std::vector<std::string_view> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most,
                                         Budget& budget);

} // namespace trireme::chat
