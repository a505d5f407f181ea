#include <trireme/chat/parser.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/parser_level.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using Type = Token::Type;

constexpr std::string_view kUnsupported[] = {"block", "extends",    "include", "import",
                                             "from",  "autoescape", "do",      "trans"};

// How a message names a token.
std::string show(const Token& token) {
  switch (token.type) {
    case Type::text:
      return "text";
    case Type::print_begin:
      return "'{{'";
    case Type::print_end:
      return "'}}'";
    case Type::block_begin:
      return "'{%'";
    case Type::block_end:
      return "'%}'";
    case Type::end:
      return "the end of the template";
    case Type::string:
      return "a string";
    default:
      return concat('\'', printable(token.text), '\'');
  }
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
  Body body = parse_body({});
  if (!unknown_.empty()) {
    fail_at(source_, unknown_.front().line, unknown_.front().what, unknown_.front().next);
  }
  return body;
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
  const Level level(*this);
  const int line = token().line;
  if (token().type != Type::name) {
    fail(concat("expected the name of a tag, found ", show(token())));
  }
  const std::string tag = token().text;
  if (std::ranges::find(kUnsupported, tag) != std::end(kUnsupported)) {
    fail(concat("the tag {% ", tag, " %} is not supported"),
         "Supported: if, for, set, macro, call, filter, with, print, raw, break, continue, generation.");
  }
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
  } else if (tag == "call") {
    statement.what = parse_call_block();
  } else if (tag == "filter") {
    ExpressionPtr filter = parse_filter_chain(nullptr, /*starts_inline=*/true);
    statement.what = FilterStatement{std::move(filter), parse_closed_block("endfilter")};
  } else if (tag == "with") {
    statement.what = parse_with();
  } else if (tag == "generation") {
    statement.what = GenerationStatement{parse_macro_rest("generation", /*has_signature=*/false).body};
  } else if (tag == "print") {
    statement.what = PrintStatement{parse_expression()};
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) {
      fail(concat("{% ", tag, " %} is outside of a loop"));
    }
    if (tag == "continue") {
      statement.what = ContinueStatement{};
    }
  } else {
    open_tags_.pop_back();
    fail(concat("unknown tag '", printable(tag), '\''),
         open_tags_.empty() ? "" : concat("The innermost open tag is {% ", open_tags_.back(), " %}."));
  }
  open_tags_.pop_back();
  return statement;
}

Target Parser::parse_one_target(bool with_attributes) {
  const Level level(*this);
  Target target;
  target.line = token().line;
  if (skip_sign("(")) {
    target = parse_target(with_attributes);
    expect_sign(")");
    return target;
  }
  target.name = take_name("a name to assign to");
  constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::ranges::find(kConstants, target.name) != std::end(kConstants)) {
    fail(concat("cannot assign to '", target.name, '\''));
  }
  if (with_attributes && skip_sign(".")) {
    target.kind = Target::Kind::attribute;
    target.attribute = take_name("the name of an attribute");
  }
  return target;
}

Target Parser::parse_target(bool with_attributes, bool ends_with_in) {
  Target first = parse_one_target(with_attributes);
  if (!is_sign(",")) {
    return first;
  }
  Target tuple;
  tuple.kind = Target::Kind::tuple;
  tuple.line = first.line;
  tuple.targets.push_back(std::move(first));
  while (skip_sign(",")) {
    if (is_sign("=") || is_sign(")") || token().type == Type::block_end || (ends_with_in && is_name("in"))) {
      break;
    }
    tuple.targets.push_back(parse_one_target(with_attributes));
  }
  return tuple;
}

IfStatement Parser::parse_if() {
  IfStatement result;
  ++optional_;
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
    --optional_;
    return result;
  }
}

ForStatement Parser::parse_for() {
  ForStatement loop;
  loop.target = parse_target(/*with_attributes=*/false, /*ends_with_in=*/true);
  const auto is_loop = [](const Target& target) { return target.name == "loop"; };
  if (is_loop(loop.target) || std::ranges::any_of(loop.target.targets, is_loop)) {
    fail("cannot assign to the variable 'loop'");
  }
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
  Target target = parse_target(/*with_attributes=*/true);
  if (skip_sign("=")) {
    ExpressionPtr value = parse_tuple(/*with_condition=*/true);
    return {line, SetStatement{std::move(target), std::move(value)}};
  }
  ExpressionPtr filter = parse_filter_chain(nullptr, /*starts_inline=*/false);
  return {line, SetBlockStatement{std::move(target), std::move(filter), parse_closed_block("endset")}};
}

MacroStatement Parser::parse_macro() {
  std::string name = take_name("the name of the macro");
  return parse_macro_rest(std::move(name), /*has_signature=*/true);
}

// The signature and the body, whose end is the current tag's.
MacroStatement Parser::parse_macro_rest(std::string name, bool has_signature) {
  MacroStatement macro;
  macro.name = std::move(name);
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  if (has_signature) {
    macro.signature = parse_signature();
  }
  macro.body = parse_closed_block("end" + open_tags_.back());
  macros_.pop_back();
  loops_ = loops;
  return macro;
}

Signature Parser::parse_signature() {
  Signature signature;
  expect_sign("(");
  while (!is_sign(")")) {
    if (!signature.parameters.empty()) {
      expect_sign(",");
    }
    signature.parameters.push_back(take_name("the name of a parameter"));
    if (skip_sign("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      fail("a parameter without a default follows one with a default");
    }
  }
  expect_sign(")");
  return signature;
}

CallStatement Parser::parse_call_block() {
  Signature signature;
  if (is_sign("(")) {
    signature = parse_signature();
  }
  CallStatement result;
  result.call = parse_expression();
  if (result.call->kind != Expression::Kind::call) {
    fail("{% call %} needs the call of a macro");
  }
  result.caller = parse_macro_rest("caller", /*has_signature=*/false);
  result.caller.signature = std::move(signature);
  return result;
}

WithStatement Parser::parse_with() {
  WithStatement result;
  while (token().type != Type::block_end) {
    if (!result.values.empty()) {
      expect_sign(",");
    }
    Target target = parse_one_target(/*with_attributes=*/false);
    expect_sign("=");
    result.values.emplace_back(std::move(target), parse_expression());
  }
  result.body = parse_closed_block("endwith");
  return result;
}

Body parse_template(std::string_view text, const std::string& source) {
  return Parser(tokenize(text, source), source).run();
}

} // namespace trireme::chat
