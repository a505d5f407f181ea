#pragma once

#include <trireme/chat/lexer.h>
#include <trireme/chat/syntax.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::chat {

/// Parses a template. Errors: InputError("chat", "SOURCE:LINE: ...") for a syntax error, for tags that are not
/// supported, and for more than 200 levels of nesting. Filters, tests and methods are looked up when they are reached.
Body parse_template(std::string_view text, const std::string& source);

/// Jinja's grammar as recursive descent: parse_expression.cpp, and parse_statement.cpp for tags.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& source) : tokens_(std::move(tokens)), source_(source) {}

  Body run();

 private:
  // Tokens.
  const Token& token(size_t ahead = 0) const;
  bool is_sign(std::string_view sign, size_t ahead = 0) const;
  bool is_name(std::string_view name, size_t ahead = 0) const;
  bool skip_sign(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_sign(std::string_view sign);
  void expect_name(std::string_view name);
  /// Within a list up to `end`: skips a comma before all but the first, or the end.
  bool has_next(std::string_view end, bool is_first);
  std::string take_name(const char* what);
  void expect(Token::Type type, const char* what);
  [[noreturn]] void fail(const std::string& what, const std::string& next = "") const;
  [[noreturn]] void fail_unexpected() const;

  Level deeper() { return {level_, 200, "tags and brackets lie more than 200 levels inside of each other"}; }

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
  /// What `parse` reads, with one of `signs` between each two, which become the node's names.
  ExpressionPtr parse_chain(Expression::Kind kind, std::initializer_list<std::string_view> signs,
                            ExpressionPtr (Parser::*parse)());
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
  ExpressionPtr parse_test(ExpressionPtr node);
  bool begins_argument_of_test() const;
  std::vector<Argument> parse_arguments();
  /// Expressions with commas between them; without one, the expression alone.
  ExpressionPtr parse_tuple(bool with_condition, bool in_parentheses = false);

  // Statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  Body parse_block(std::initializer_list<std::string_view> ends);
  Body parse_closed_block(std::string_view end);
  /// Of a macro or `generation`, which no loop around it can be left from.
  Body parse_own_block(std::string_view end);
  Statement parse_statement();
  Target parse_target();
  std::string take_target();
  IfStatement parse_if();
  ForStatement parse_for();
  Statement parse_set(int line);
  MacroStatement parse_macro();
  Signature parse_signature();

  std::vector<Token> tokens_;
  const std::string& source_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;                    ///< around here, within the macro
  const Signature* macro_ = nullptr; ///< around here
  std::vector<std::string> open_tags_;
};

} // namespace trireme::chat
