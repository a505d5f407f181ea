#pragma once

#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// Translates a regular expression from Oniguruma's Ruby syntax, which Hugging Face's tokenizers uses, to PCRE2's (with
/// UTF, UCP and MULTILINE). What the two read differently is written out: \s and \w as classes of Unicode, \h as a
/// hexadecimal digit, \v as U+000B, \p{Han} as a script, (?m) as (?s). `where` names the expression in messages.
/// Errors: InputError naming what PCRE2 does not have: nested classes, &&, absent operators, {n,m}+.
std::string pcre2_syntax(std::string_view expression, const std::string& where);

} // namespace trireme::tokenizer
