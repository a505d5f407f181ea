#pragma once

#include <trireme/chat/lexer.h>
#include <trireme/chat/syntax.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::chat {

/// Parses a template. Errors: InputError("chat", "SOURCE:LINE: ...") for a syntax error, for tags, filters and tests
/// that are not supported (inside of an `if` only once they are reached), and for more than 200 levels of nesting.
Body parse_template(std::string_view text, const std::string& source);

/// Jinja's grammar as recursive descent: parse_expression.cpp, and parse_statement.cpp for tags.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& source) : tokens_(std::move(tokens)), source_(source) {}

  Body run();

 private:
  class Level;

  // Tokens.
  const Token& token(size_t ahead = 0) const;
  bool is_sign(std::string_view sign, size_t ahead = 0) const;
  bool is_name(std::string_view name, size_t ahead = 0) const;
  bool skip_sign(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_sign(std::string_view sign);
  void expect_name(std::string_view name);
  std::string take_name(const char* what);
  void expect(Token::Type type, const char* what);
  [[noreturn]] void fail(const std::string& what, const std::string& next = "") const;
  [[noreturn]] void fail_unexpected() const;

  // Expressions.
  ExpressionPtr make(Expression::Kind kind, int line, std::vector<ExpressionPtr> operands = {});
  void add_operand(Expression& node, ExpressionPtr operand) const;
  ExpressionPtr parse_expression(bool with_condition = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_chain(std::initializer_list<std::string_view> signs, ExpressionPtr (Parser::*parse)());
  ExpressionPtr parse_operand() { return parse_unary(/*with_filter=*/true); }
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_slice(ExpressionPtr node, ExpressionPtr begin, int line);
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr node);
  ExpressionPtr parse_filter_chain(ExpressionPtr node, bool starts_inline);
  ExpressionPtr parse_test(ExpressionPtr node);
  std::string parse_dotted_name(const char* what);
  std::vector<Argument> parse_arguments();
  /// Expressions with commas between them; without one, the expression alone.
  ExpressionPtr parse_tuple(bool with_condition, bool in_parentheses = false);

  // Statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  Body parse_block(std::initializer_list<std::string_view> ends);
  Body parse_closed_block(std::string_view end);
  Statement parse_statement();
  Target parse_target(bool with_attributes, bool ends_with_in = false);
  Target parse_one_target(bool with_attributes);
  IfStatement parse_if();
  ForStatement parse_for();
  Statement parse_set(int line);
  MacroStatement parse_macro();
  MacroStatement parse_macro_rest(std::string name, bool has_signature);
  Signature parse_signature();
  CallStatement parse_call_block();
  WithStatement parse_with();

  std::vector<Token> tokens_;
  const std::string& source_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;                       ///< around here, within the macro
  int optional_ = 0;                    ///< `if`s around here: what is unknown there counts only when it is reached
  std::vector<MacroStatement*> macros_; ///< around here
  std::vector<std::string> open_tags_;
  /// A filter or test that does not exist, outside of an `if`.
  struct Unknown {
    int line;
    std::string what;
    std::string next;
  };
  std::vector<Unknown> unknown_;
};

} // namespace trireme::chat
