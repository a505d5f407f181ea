#include <trireme/chat/parser.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using Form = Expression::Kind;
using Type = Token::Type;

// Of an expression's tree.
constexpr int kMostDepth = 200;

std::vector<ExpressionPtr> list_of(ExpressionPtr a, ExpressionPtr b = nullptr) {
  std::vector<ExpressionPtr> list;
  list.push_back(std::move(a));
  if (b) {
    list.push_back(std::move(b));
  }
  return list;
}

} // namespace

ExpressionPtr Parser::make(Form kind, int line, std::vector<ExpressionPtr> operands) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  for (ExpressionPtr& operand : operands) {
    add_operand(*node, std::move(operand));
  }
  return node;
}

void Parser::add_operand(Expression& node, ExpressionPtr operand) const {
  if (operand) {
    node.depth = std::max(node.depth, operand->depth + 1);
    if (node.depth > kMostDepth) {
      fail("the expression is nested too deeply", concat("At most ", kMostDepth, " levels are supported."));
    }
  }
  node.operands.push_back(std::move(operand));
}

ExpressionPtr Parser::parse_expression(bool with_condition) {
  const Level level = deeper();
  return with_condition ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  ExpressionPtr node = parse_or();
  while (is_name("if")) {
    const int line = token().line;
    ++at_;
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    node = make(Form::conditional, line, list_of(std::move(node), std::move(condition)));
    add_operand(*node, std::move(otherwise));
  }
  return node;
}

ExpressionPtr Parser::parse_or() {
  return parse_chain(Form::or_, {"or"}, &Parser::parse_and);
}

ExpressionPtr Parser::parse_and() {
  return parse_chain(Form::and_, {"and"}, &Parser::parse_not);
}

ExpressionPtr Parser::parse_not() {
  if (!is_name("not")) {
    return parse_comparison();
  }
  const Level level = deeper();
  const int line = token().line;
  ++at_;
  return make(Form::not_, line, list_of(parse_not()));
}

ExpressionPtr Parser::parse_comparison() {
  return parse_chain(Form::comparison, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"}, &Parser::parse_sum);
}

ExpressionPtr Parser::parse_chain(Form kind, std::initializer_list<std::string_view> signs,
                                  ExpressionPtr (Parser::*parse)()) {
  ExpressionPtr node = (this->*parse)();
  ExpressionPtr chain;
  while (token().type == Type::sign || token().type == Type::name) {
    const bool is_not_in = is_name("not") && is_name("in", 1);
    const std::string sign = is_not_in ? "not in" : token().text;
    if (std::ranges::find(signs, sign) == signs.end()) {
      break;
    }
    if (!chain) {
      chain = make(kind, token().line, list_of(std::move(node)));
    }
    chain->names.push_back(sign);
    at_ += is_not_in ? 2 : 1;
    add_operand(*chain, (this->*parse)());
  }
  return chain ? std::move(chain) : std::move(node);
}

ExpressionPtr Parser::parse_sum() {
  return parse_chain(Form::arithmetic, {"+", "-"}, &Parser::parse_concatenation);
}

ExpressionPtr Parser::parse_concatenation() {
  return parse_chain(Form::concatenate, {"~"}, &Parser::parse_product);
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr node = parse_chain(Form::arithmetic, {"*", "%"}, &Parser::parse_operand);
  for (const char* sign : {"/", "//", "**"}) {
    if (is_sign(sign)) {
      fail(concat("the operator ", sign, " is not supported"), "Supported: + - * % ~ and comparisons.");
    }
  }
  return node;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Level level = deeper();
  const int line = token().line;
  ExpressionPtr node;
  if (skip_sign("-")) {
    node = make(Form::negate, line, list_of(parse_unary(/*with_filter=*/false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_primary() {
  const int line = token().line;
  if (token().type == Type::name) {
    return parse_name();
  }
  if (token().type == Type::string) {
    std::string text;
    for (; token().type == Type::string; ++at_) {
      text += token().text;
    }
    ExpressionPtr node = make(Form::literal, line);
    node->value = std::move(text);
    return node;
  }
  if (token().type == Type::integer || token().type == Type::real) {
    ExpressionPtr node = make(Form::literal, line);
    node->value = token().type == Type::integer ? Value(token().integer) : Value(token().real);
    ++at_;
    return node;
  }
  if (skip_sign("(")) {
    const Level level = deeper();
    ExpressionPtr node = parse_tuple(/*with_condition=*/true, /*in_parentheses=*/true);
    expect_sign(")");
    return node;
  }
  if (is_sign("[")) {
    return parse_list();
  }
  if (is_sign("{")) {
    return parse_dict();
  }
  fail_unexpected();
}

ExpressionPtr Parser::parse_name() {
  const Token& word = token();
  ++at_;
  const std::string& name = word.text;
  ExpressionPtr node = make(Form::literal, word.line);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->value = name == "true" || name == "True";
  } else if (name != "none" && name != "None") {
    if ((name == "kwargs" || name == "varargs") && macro_ != nullptr &&
        std::ranges::find(macro_->parameters, name) == macro_->parameters.end()) {
      fail(concat("'", name, "' of a macro is not supported"), "Give the macro a parameter for each argument.");
    }
    node->kind = Form::name;
    node->name = name;
  }
  return node;
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr node = make(Form::list, token().line);
  expect_sign("[");
  while (has_next("]", node->operands.empty())) {
    add_operand(*node, parse_expression());
  }
  return node;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr node = make(Form::dict, token().line);
  expect_sign("{");
  while (has_next("}", node->operands.empty())) {
    add_operand(*node, parse_expression());
    expect_sign(":");
    add_operand(*node, parse_expression());
  }
  return node;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  while (is_sign(".") || is_sign("[") || is_sign("(")) {
    node = is_sign("(") ? parse_call(std::move(node)) : parse_subscript(std::move(node));
  }
  return node;
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (is_sign("|")) {
      node = parse_filter(std::move(node));
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const int line = token().line;
  if (skip_sign(".")) {
    ExpressionPtr attribute = make(Form::attribute, line, list_of(std::move(node)));
    attribute->name = take_name("a name after '.'");
    return attribute;
  }
  expect_sign("[");
  if (is_sign("]")) {
    fail_unexpected();
  }
  ExpressionPtr key = is_sign(":") ? nullptr : parse_expression();
  if (is_sign(":")) {
    return parse_slice(std::move(node), std::move(key), line);
  }
  expect_sign("]");
  return make(Form::item, line, list_of(std::move(node), std::move(key)));
}

ExpressionPtr Parser::parse_slice(ExpressionPtr node, ExpressionPtr begin, int line) {
  expect_sign(":");
  ExpressionPtr slice = make(Form::slice, line, list_of(std::move(node)));
  add_operand(*slice, std::move(begin));
  add_operand(*slice, is_sign(":") || is_sign("]") ? nullptr : parse_expression());
  add_operand(*slice, !skip_sign(":") || is_sign("]") ? nullptr : parse_expression());
  expect_sign("]");
  return slice;
}

std::vector<Argument> Parser::parse_arguments() {
  std::vector<Argument> arguments;
  expect_sign("(");
  while (has_next(")", arguments.empty())) {
    Argument argument;
    argument.is_list = skip_sign("*");
    if (token().type == Type::name && is_sign("=", 1)) {
      argument.name = token().text;
      at_ += 2;
    } else if (!arguments.empty() && !arguments.back().name.empty()) {
      fail("a positional argument follows a named one");
    }
    argument.value = parse_expression();
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  const int line = token().line;
  ExpressionPtr call = make(Form::call, line, list_of(std::move(node)));
  call->arguments = parse_arguments();
  for (const Argument& argument : call->arguments) {
    call->depth = std::max(call->depth, argument.value->depth + 1);
  }
  return call;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr node) {
  const int line = token().line;
  expect_sign("|");
  ExpressionPtr filter = make(Form::filter, line, list_of(std::move(node)));
  filter->name = take_name("the name of a filter after '|'");
  if (is_sign("(")) {
    filter->arguments = parse_arguments();
  }
  return filter;
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  const int line = token().line;
  expect_name("is");
  const bool is_negated = skip_name("not");
  ExpressionPtr test = make(Form::test, line, list_of(std::move(node)));
  test->name = take_name("the name of a test after 'is'");
  if (is_sign("(")) {
    test->arguments = parse_arguments();
  } else if (begins_argument_of_test()) {
    test->arguments.emplace_back().value = parse_postfix(parse_primary());
  }
  for (const Argument& argument : test->arguments) {
    test->depth = std::max(test->depth, argument.value->depth + 1);
  }
  return is_negated ? make(Form::not_, line, list_of(std::move(test))) : std::move(test);
}

// `x is eq 1` needs no brackets.
bool Parser::begins_argument_of_test() const {
  constexpr std::string_view kGoesOn[] = {"and", "else", "if", "in", "not", "or"};
  switch (token().type) {
    case Type::name:
      if (is_name("is")) {
        fail("a test follows a test", "Put the first into brackets: (x is y) is z.");
      }
      return std::ranges::find(kGoesOn, token().text) == std::end(kGoesOn);
    case Type::string:
    case Type::integer:
    case Type::real:
      return true;
    default:
      return is_sign("[") || is_sign("{");
  }
}

ExpressionPtr Parser::parse_tuple(bool with_condition, bool in_parentheses) {
  const int line = token().line;
  const auto ends = [&] { return token().type == Type::print_end || token().type == Type::block_end || is_sign(")"); };
  std::vector<ExpressionPtr> parts;
  bool is_tuple = false;
  while (!ends()) {
    parts.push_back(parse_expression(with_condition));
    if (!skip_sign(",")) {
      break;
    }
    is_tuple = true;
  }
  if (!is_tuple && parts.size() == 1) {
    return std::move(parts.front());
  }
  if (parts.empty() && !in_parentheses) {
    fail("an expression is missing");
  }
  return make(Form::tuple, line, std::move(parts));
}

} // namespace trireme::chat
