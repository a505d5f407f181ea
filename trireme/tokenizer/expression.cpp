#include <trireme/tokenizer/expression.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/expression_syntax.h>
#include <trireme/tokenizer/unicode.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

namespace trireme::tokenizer {
namespace {

constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
constexpr size_t kLeastStack = size_t{32} << 10;
constexpr size_t kMostStack = size_t{16} << 20;

// What a thread needs to match.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kLeastStack, kMostStack, nullptr);

  MatchState() {
    if (data == nullptr || context == nullptr) {
      throw std::bad_alloc();
    }
    if (stack != nullptr) { // nullptr: PCRE2 was built without a compiler to machine code
      pcre2_jit_stack_assign(context, nullptr, stack);
    }
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
};

MatchState& state_of_thread() {
  thread_local MatchState state;
  return state;
}

pcre2_code* compile(std::string_view expression, int& error, size_t& at) {
  static pcre2_compile_context* const context = [] {
    pcre2_compile_context* made = pcre2_compile_context_create(nullptr);
    if (made == nullptr) {
      throw std::bad_alloc();
    }
    pcre2_set_newline(made, PCRE2_NEWLINE_LF);
    return made;
  }();
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), kOptions, &error, &at,
                       context);
}

std::string message(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

} // namespace

void Expression::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Expression::Expression(std::string_view expression, const std::string& where) : where_(where) {
  const std::string translated = pcre2_syntax(expression, where);
  int error = 0;
  size_t at = 0;
  code_.reset(compile(translated, error, at));
  if (!code_) {
    throw InputError("tokenizer",
                     concat(where, ": the expression ", printable(expression.substr(0, 200)), " cannot be used: ",
                            message(error), " before \"", printable(std::string_view(translated).substr(at, 40)), '"'),
                     "Write it with what PCRE2 has (man pcre2pattern).");
  }
  compiled_to_machine_code_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

Expression Expression::literal(std::string text) {
  Expression made;
  made.literal_ = std::move(text);
  return made;
}

bool Expression::compiles(const std::string& pcre2_expression) {
  int error = 0;
  size_t at = 0;
  const std::unique_ptr<pcre2_code, Free> code(compile(pcre2_expression, error, at));
  return code != nullptr;
}

std::optional<Match> Expression::find(std::string_view text, size_t from) const {
  if (!code_) {
    const size_t at = text.find(literal_, from);
    return at == std::string_view::npos ? std::nullopt : std::optional(Match{at, at + literal_.size()});
  }
  const MatchState& state = state_of_thread();
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found =
      compiled_to_machine_code_
          ? pcre2_jit_match(code_.get(), subject, text.size(), from, 0, state.data, state.context)
          : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (found == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (found < 0) {
    throw InputError("tokenizer",
                     concat(where_, ": the expression gave up at byte ", from, " of a text: ", message(found)),
                     "Give the text in smaller parts, or use an expression that backtracks less.");
  }
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(state.data);
  return Match{bounds[0], std::max(bounds[0], bounds[1])}; // \K in a lookahead may end before it begins
}

std::optional<Match> Matches::next() {
  while (from_ <= text_.size()) {
    const std::optional<Match> found = expression_.find(text_, from_);
    if (!found) {
      from_ = text_.size() + 1;
      return std::nullopt;
    }
    if (found->begin == found->end && last_end_ == found->end) {
      from_ = found->end < text_.size() ? found->end + char_at(text_, found->end).bytes : text_.size() + 1;
      continue;
    }
    from_ = found->end;
    last_end_ = found->end;
    return found;
  }
  return std::nullopt;
}

} // namespace trireme::tokenizer
