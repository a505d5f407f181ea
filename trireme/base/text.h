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

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string lower(std::string_view text);

} // namespace trireme
