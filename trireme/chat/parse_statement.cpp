#include <trireme/chat/parser.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using Type = Token::Type;

// How a message names a token.
std::string show(const Token& token) {
  const bool is_content = token.type == Type::text || token.type == Type::string;
  return token.type == Type::end ? "the end of the template"
         : is_content            ? "a text"
                                 : concat('\'', printable(token.text), '\'');
}

} // namespace

const Token& Parser::token(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

bool Parser::is_sign(std::string_view sign, size_t ahead) const {
  return token(ahead).type == Type::sign && token(ahead).text == sign;
}

bool Parser::is_name(std::string_view name, size_t ahead) const {
  return token(ahead).type == Type::name && token(ahead).text == name;
}

bool Parser::skip_sign(std::string_view sign) {
  const bool found = is_sign(sign);
  at_ += found ? 1 : 0;
  return found;
}

bool Parser::skip_name(std::string_view name) {
  const bool found = is_name(name);
  at_ += found ? 1 : 0;
  return found;
}

void Parser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) {
    fail(concat("expected '", sign, "', found ", show(token())));
  }
}

bool Parser::has_next(std::string_view end, bool is_first) {
  if (!is_first && !is_sign(end)) {
    expect_sign(",");
  }
  return !skip_sign(end);
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    fail(concat("expected '", name, "', found ", show(token())));
  }
}

std::string Parser::take_name(const char* what) {
  if (token().type != Type::name) {
    fail(concat("expected ", what, ", found ", show(token())));
  }
  return tokens_[at_++].text;
}

void Parser::expect(Type type, const char* what) {
  if (token().type != type) {
    fail(concat("expected ", what, ", found ", show(token())));
  }
  ++at_;
}

void Parser::fail(const std::string& what, const std::string& next) const {
  fail_at(source_, token().line, what, next);
}

void Parser::fail_unexpected() const {
  fail(concat("unexpected ", show(token())));
}

Body Parser::run() {
  try {
    return parse_body({});
  } catch (const TemplateError& error) { // of deeper()
    fail(error.what());
  }
}

// Up to a tag named in `ends`, at whose name it stops.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  Body body;
  while (token().type != Type::end) {
    const int line = token().line;
    if (token().type == Type::text) {
      body.push_back({line, TextStatement{token().text}});
      ++at_;
    } else if (token().type == Type::print_begin) {
      ++at_;
      body.push_back({line, PrintStatement{parse_tuple(/*with_condition=*/true)}});
      expect(Type::print_end, "'}}'");
    } else {
      expect(Type::block_begin, "'{%'");
      if (token().type == Type::name && std::ranges::find(ends, token().text) != ends.end()) {
        return body;
      }
      body.push_back(parse_statement());
      expect(Type::block_end, "'%}'");
    }
  }
  if (ends.size() > 0) {
    fail(concat("the template ends inside of {% ", open_tags_.back(), " %}"),
         concat("Close it with {% ", *(ends.end() - 1), " %}."));
  }
  return body;
}

Body Parser::parse_block(std::initializer_list<std::string_view> ends) {
  skip_sign(":");
  expect(Type::block_end, "'%}'");
  return parse_body(ends);
}

Body Parser::parse_closed_block(std::string_view end) {
  Body body = parse_block({end});
  ++at_;
  return body;
}

Statement Parser::parse_statement() {
  const Level level = deeper();
  const int line = token().line;
  if (token().type != Type::name) {
    fail(concat("expected the name of a tag, found ", show(token())));
  }
  const std::string tag = token().text;
  open_tags_.push_back(tag);
  ++at_;
  Statement statement{line, BreakStatement{}};
  if (tag == "if") {
    statement.what = parse_if();
  } else if (tag == "for") {
    statement.what = parse_for();
  } else if (tag == "set") {
    statement = parse_set(line);
  } else if (tag == "macro") {
    statement.what = parse_macro();
  } else if (tag == "generation") {
    statement.what = GenerationStatement{parse_own_block("endgeneration")};
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) {
      fail(concat("{% ", tag, " %} is outside of a loop"));
    }
    if (tag == "continue") {
      statement.what = ContinueStatement{};
    }
  } else {
    open_tags_.pop_back();
    fail(concat("the tag {% ", printable(tag), " %} is not supported here"),
         open_tags_.empty() ? "Supported: if, for, set, macro, break, continue, generation."
                            : concat("The innermost open tag is {% ", open_tags_.back(),
                                     " %}. Supported: if, for, set, macro, break, continue, generation."));
  }
  open_tags_.pop_back();
  return statement;
}

std::string Parser::take_target() {
  constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None", "loop"};
  if (token().type == Type::name && std::ranges::find(kReserved, token().text) != std::end(kReserved)) {
    fail(concat("cannot assign to '", token().text, '\''));
  }
  return take_name("a name to assign to");
}

// Names with commas between them, in parentheses or not.
Target Parser::parse_target() {
  const bool has_parenthesis = skip_sign("(");
  Target target;
  do {
    target.names.push_back(take_target());
  } while (skip_sign(","));
  if (has_parenthesis) {
    expect_sign(")");
  }
  return target;
}

IfStatement Parser::parse_if() {
  IfStatement result;
  while (true) {
    ExpressionPtr condition = parse_tuple(/*with_condition=*/false);
    result.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    if (skip_name("elif")) {
      continue;
    }
    if (skip_name("else")) {
      result.branches.emplace_back(nullptr, parse_block({"endif"}));
    }
    expect_name("endif");
    return result;
  }
}

ForStatement Parser::parse_for() {
  ForStatement loop;
  loop.target = parse_target();
  expect_name("in");
  loop.elements = parse_tuple(/*with_condition=*/false);
  if (skip_name("if")) {
    loop.condition = parse_expression();
  }
  if (is_name("recursive")) {
    fail("a recursive loop is not supported", "Write a macro that calls itself.");
  }
  ++loops_;
  loop.body = parse_block({"else", "endfor"});
  --loops_;
  if (skip_name("else")) {
    loop.otherwise = parse_block({"endfor"});
  }
  expect_name("endfor");
  return loop;
}

Statement Parser::parse_set(int line) {
  Target target = parse_target();
  if (target.names.size() == 1 && skip_sign(".")) {
    target.attribute = take_name("the name of an attribute");
  }
  if (skip_sign("=")) {
    ExpressionPtr value = parse_tuple(/*with_condition=*/true);
    return {line, SetStatement{std::move(target), std::move(value)}};
  }
  if (is_sign("|")) {
    fail("a filter behind {% set %} is not supported", "Filter the variable where it is printed.");
  }
  return {line, SetBlockStatement{std::move(target), parse_closed_block("endset")}};
}

MacroStatement Parser::parse_macro() {
  std::string name = take_name("the name of the macro");
  Signature signature = parse_signature();
  const Signature* const around = std::exchange(macro_, &signature);
  Body body = parse_own_block("endmacro");
  macro_ = around;
  return {.name = std::move(name), .signature = std::move(signature), .body = std::move(body)};
}

Body Parser::parse_own_block(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  Body body = parse_closed_block(end);
  loops_ = loops;
  return body;
}

Signature Parser::parse_signature() {
  Signature signature;
  expect_sign("(");
  while (has_next(")", signature.parameters.empty())) {
    signature.parameters.push_back(take_name("the name of a parameter"));
    if (skip_sign("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      fail("a parameter without a default follows one with a default");
    }
  }
  return signature;
}

Body parse_template(std::string_view text, const std::string& source) {
  return Parser(tokenize(text, source), source).run();
}

} // namespace trireme::chat
