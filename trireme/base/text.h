#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The candidate nearest to `word` in edit distance (case-insensitive, a swap of
/// two neighbours counts one), or "" if none is near enough to be a typing error.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// ` Did you mean "x"?` or, with no near candidate, ` Known: a, b, c.`
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Replaces invalid UTF-8, and control characters other than tab and line end, by `instead` (U+FFFD). Use
/// it for pages and all terminal output: text from a file must not move the cursor, hide lines or forge
/// them.
std::string clean_utf8(std::string_view text, std::string_view instead = "\xEF\xBF\xBD");
/// The same on one line, with '?': for a name or a value from a file.
std::string printable(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
/// `word`, quoted if a shell would split it.
std::string for_shell(const std::string& word);
std::string lower(std::string_view text);

} // namespace trireme
