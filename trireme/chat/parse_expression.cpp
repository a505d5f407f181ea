#include <trireme/chat/parser.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/parser_level.h>
#include <trireme/chat/value_tests.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using Form = Expression::Kind;
using Type = Token::Type;

// Of an expression's tree.
constexpr int kMostDepth = 200;

constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};

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
  const Level level(*this);
  return with_condition ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  const size_t unknown = unknown_.size();
  ExpressionPtr node = parse_or();
  if (is_name("if")) {
    unknown_.erase(unknown_.begin() + static_cast<std::ptrdiff_t>(unknown), unknown_.end()); // it may not be reached
  }
  while (is_name("if")) {
    const int line = token().line;
    ++at_;
    ++optional_;
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    --optional_;
    node = make(Form::conditional, line, list_of(std::move(node), std::move(condition)));
    add_operand(*node, std::move(otherwise));
  }
  return node;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr node = parse_and();
  if (is_name("or")) {
    node = make(Form::or_, token().line, list_of(std::move(node)));
    while (skip_name("or")) {
      add_operand(*node, parse_and());
    }
  }
  return node;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr node = parse_not();
  if (is_name("and")) {
    node = make(Form::and_, token().line, list_of(std::move(node)));
    while (skip_name("and")) {
      add_operand(*node, parse_not());
    }
  }
  return node;
}

ExpressionPtr Parser::parse_not() {
  if (!is_name("not")) {
    return parse_comparison();
  }
  const Level level(*this);
  const int line = token().line;
  ++at_;
  return make(Form::not_, line, list_of(parse_not()));
}

ExpressionPtr Parser::parse_comparison() {
  ExpressionPtr node = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::string sign;
    if (token().type == Type::sign && std::ranges::find(kComparisons, token().text) != std::end(kComparisons)) {
      sign = token().text;
      ++at_;
    } else if (skip_name("in")) {
      sign = "in";
    } else if (is_name("not") && is_name("in", 1)) {
      sign = "not in";
      at_ += 2;
    } else {
      return chain ? std::move(chain) : std::move(node);
    }
    if (!chain) {
      chain = make(Form::comparison, token().line, list_of(std::move(node)));
    }
    chain->names.push_back(std::move(sign));
    add_operand(*chain, parse_sum());
  }
}

ExpressionPtr Parser::parse_chain(std::initializer_list<std::string_view> signs, ExpressionPtr (Parser::*parse)()) {
  ExpressionPtr node = (this->*parse)();
  ExpressionPtr chain;
  while (token().type == Type::sign && std::ranges::find(signs, token().text) != signs.end()) {
    if (!chain) {
      chain = make(Form::arithmetic, token().line, list_of(std::move(node)));
    }
    chain->names.push_back(token().text);
    ++at_;
    add_operand(*chain, (this->*parse)());
  }
  return chain ? std::move(chain) : std::move(node);
}

ExpressionPtr Parser::parse_sum() {
  return parse_chain({"+", "-"}, &Parser::parse_concatenation);
}

ExpressionPtr Parser::parse_concatenation() {
  ExpressionPtr node = parse_product();
  if (is_sign("~")) {
    node = make(Form::concatenate, token().line, list_of(std::move(node)));
    while (skip_sign("~")) {
      add_operand(*node, parse_product());
    }
  }
  return node;
}

ExpressionPtr Parser::parse_product() {
  return parse_chain({"*", "/", "//", "%"}, &Parser::parse_power);
}

ExpressionPtr Parser::parse_power() {
  return parse_chain({"**"}, &Parser::parse_operand);
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Level level(*this);
  const int line = token().line;
  ExpressionPtr node;
  if (is_sign("-") || is_sign("+")) {
    const Form kind = is_sign("-") ? Form::negate : Form::affirm;
    ++at_;
    node = make(kind, line, list_of(parse_unary(/*with_filter=*/false)));
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
    const Level level(*this);
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
    node->kind = Form::name;
    node->name = name;
    for (MacroStatement* const macro : macros_) {
      macro->uses_caller = macro->uses_caller || name == "caller";
      macro->uses_varargs = macro->uses_varargs || name == "varargs";
      macro->uses_kwargs = macro->uses_kwargs || name == "kwargs";
    }
  }
  return node;
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr node = make(Form::list, token().line);
  expect_sign("[");
  while (!is_sign("]")) {
    if (!node->operands.empty()) {
      expect_sign(",");
    }
    if (!is_sign("]")) {
      add_operand(*node, parse_expression());
    }
  }
  expect_sign("]");
  return node;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr node = make(Form::dict, token().line);
  expect_sign("{");
  while (!is_sign("}")) {
    if (!node->operands.empty()) {
      expect_sign(",");
    }
    if (!is_sign("}")) {
      add_operand(*node, parse_expression());
      expect_sign(":");
      add_operand(*node, parse_expression());
    }
  }
  expect_sign("}");
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
      node = parse_filter_chain(std::move(node), /*starts_inline=*/false);
    } else if (is_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_sign("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const int line = token().line;
  if (skip_sign(".")) {
    if (token().type == Type::integer) {
      ExpressionPtr index = make(Form::literal, line);
      index->value = token().integer;
      ++at_;
      return make(Form::item, line, list_of(std::move(node), std::move(index)));
    }
    ExpressionPtr attribute = make(Form::attribute, line, list_of(std::move(node)));
    attribute->name = take_name("a name or a number after '.'");
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
  if (is_sign(",")) {
    key = make(Form::tuple, line, list_of(std::move(key)));
    while (skip_sign(",")) {
      add_operand(*key, parse_expression());
    }
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
  while (!is_sign(")")) {
    if (!arguments.empty()) {
      expect_sign(",");
      if (is_sign(")")) {
        break;
      }
    }
    Argument argument;
    if (skip_sign("*")) {
      argument.kind = Argument::Kind::list;
    } else if (skip_sign("**")) {
      argument.kind = Argument::Kind::dict;
    } else if (token().type == Type::name && is_sign("=", 1)) {
      argument.kind = Argument::Kind::named;
      argument.name = token().text;
      at_ += 2;
    }
    const Argument::Kind last = arguments.empty() ? Argument::Kind::positional : arguments.back().kind;
    if (argument.kind < last && !(argument.kind == Argument::Kind::named && last == Argument::Kind::list)) {
      fail("a positional argument follows a named one");
    }
    argument.value = parse_expression();
    arguments.push_back(std::move(argument));
  }
  expect_sign(")");
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

ExpressionPtr Parser::parse_filter_chain(ExpressionPtr node, bool starts_inline) {
  while (starts_inline || skip_sign("|")) {
    starts_inline = false;
    node = parse_filter(std::move(node));
  }
  return node;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr node) {
  const int line = token().line;
  std::string name = parse_dotted_name("the name of a filter after '|'");
  if (optional_ == 0 && !is_filter(name)) {
    unknown_.push_back({line, concat("no filter is named '", printable(name), '\''),
                        concat("Supported: ", join(filter_names(), ", "), '.')});
  }
  ExpressionPtr filter = make(Form::filter, line);
  add_operand(*filter, std::move(node));
  filter->name = std::move(name);
  if (is_sign("(")) {
    filter->arguments = parse_arguments();
  }
  return filter;
}

// Names of filters and tests may have dots.
std::string Parser::parse_dotted_name(const char* what) {
  std::string name = take_name(what);
  while (skip_sign(".")) {
    name += "." + take_name("a name after '.'");
  }
  return name;
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  const int line = token().line;
  expect_name("is");
  const bool is_negated = skip_name("not");
  std::string name = parse_dotted_name("the name of a test after 'is'");
  if (optional_ == 0 && !is_value_test(name)) {
    unknown_.push_back({line, concat("no test is named '", printable(name), '\''),
                        concat("Supported: ", join(value_test_names(), ", "), '.')});
  }
  ExpressionPtr test = make(Form::test, line, list_of(std::move(node)));
  test->name = std::move(name);
  const Type type = token().type;
  if (is_sign("(")) {
    test->arguments = parse_arguments();
  } else if ((type == Type::name && !is_name("else") && !is_name("or") && !is_name("and")) || type == Type::string ||
             type == Type::integer || type == Type::real || is_sign("[") || is_sign("{")) {
    if (is_name("is")) {
      fail("tests cannot be chained with 'is'", "Write \"and\" between two tests.");
    }
    const Level level(*this);
    Argument argument;
    argument.value = parse_postfix(parse_primary());
    test->arguments.push_back(std::move(argument));
  }
  return is_negated ? make(Form::not_, line, list_of(std::move(test))) : std::move(test);
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
