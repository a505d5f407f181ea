#include <trireme/chat/interpreter.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/members.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>
#include <trireme/chat/value_tests.h>

#include <algorithm>

namespace trireme::chat {
namespace {

bool holds(const Value& left, std::string_view sign, const Value& right, Budget& budget) {
  if (sign == "in" || sign == "not in") {
    return contains(right, left, budget) == (sign == "in");
  }
  return compare(left, sign, right, budget);
}

} // namespace

Value Interpreter::evaluate(const Expression& node, const ScopePtr& scope) {
  using Form = Expression::Kind;
  const Level level = deeper();
  budget_.spend(1 + node.name.size() / 16);
  line_ = node.line;
  switch (node.kind) {
    case Form::literal:
      return node.value;
    case Form::name:
      return evaluate_name(node, *scope);
    case Form::list:
      return make_list(evaluate_all(node, scope), budget_);
    case Form::tuple:
      return make_sequence(Sequence::Type::tuple, evaluate_all(node, scope), budget_);
    case Form::dict:
      return evaluate_dict(node, scope);
    case Form::attribute:
      return get_attribute(evaluate(*node.operands[0], scope), node.name, budget_);
    case Form::item: {
      const Value value = evaluate(*node.operands[0], scope);
      return get_item(value, evaluate(*node.operands[1], scope), budget_);
    }
    case Form::slice:
      return evaluate_slice(node, scope);
    case Form::negate:
      return negate(evaluate(*node.operands[0], scope));
    case Form::not_:
      return !is_true(evaluate(*node.operands[0], scope));
    case Form::arithmetic:
      return evaluate_arithmetic(node, scope);
    case Form::comparison:
      return evaluate_comparison(node, scope);
    case Form::and_:
    case Form::or_:
      return evaluate_either(node, scope);
    case Form::concatenate:
      return evaluate_concatenation(node, scope);
    case Form::conditional:
      return evaluate_conditional(node, scope);
    case Form::call:
      return evaluate_call(node, scope);
    case Form::filter:
      return evaluate_filter(node, scope);
    case Form::test:
      return evaluate_test(node, scope);
  }
  return {};
}

Value Interpreter::evaluate_name(const Expression& node, const Scope& scope) const {
  budget_.spend(scope.depth() / 8);
  if (const Value* const found = scope.find(node.name)) {
    return *found;
  }
  budget_.spend(Budget::kStepsOfObject);
  return Value::undefined(concat('\'', node.name, "' is undefined"));
}

Values Interpreter::evaluate_all(const Expression& node, const ScopePtr& scope) {
  Values values;
  for (const ExpressionPtr& operand : node.operands) {
    values.push_back(evaluate(*operand, scope));
  }
  return values;
}

Value Interpreter::evaluate_dict(const Expression& node, const ScopePtr& scope) {
  budget_.spend(Budget::kStepsOfObject);
  Mapping mapping;
  for (size_t i = 0; i + 1 < node.operands.size(); i += 2) {
    const Value key = evaluate(*node.operands[i], scope);
    mapping.set(key, evaluate(*node.operands[i + 1], scope), budget_);
  }
  return make_mapping(std::move(mapping));
}

Value Interpreter::evaluate_slice(const Expression& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.operands[0], scope);
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (!node.operands[i]) {
      return std::nullopt;
    }
    const Value given = evaluate(*node.operands[i], scope);
    const auto number = number_of(given);
    if (!number || number->is_real) {
      given.require_defined();
      throw TemplateError(concat("slice indices must be integers, not ", type_name(given)));
    }
    return number->integer;
  };
  const auto begin = bound(1);
  const auto end = bound(2);
  const auto step = bound(3);
  if (step == -1 && !begin && !end) {
    return reverse(value, budget_);
  }
  if (step && step != 1) {
    throw NotSupported("slices support no steps but [::-1]");
  }
  return slice(value, begin, end, budget_);
}

Value Interpreter::evaluate_arithmetic(const Expression& node, const ScopePtr& scope) {
  Value value = evaluate(*node.operands[0], scope);
  for (size_t i = 0; i < node.names.size(); ++i) {
    const Value other = evaluate(*node.operands[i + 1], scope);
    line_ = node.line;
    value = calculate(value, node.names[i], other, budget_);
  }
  return value;
}

Value Interpreter::evaluate_comparison(const Expression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.operands[0], scope);
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value right = evaluate(*node.operands[i + 1], scope);
    line_ = node.line;
    if (!holds(left, node.names[i], right, budget_)) {
      return false;
    }
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_either(const Expression& node, const ScopePtr& scope) {
  const bool stops_at = node.kind == Expression::Kind::or_;
  Value value;
  for (const ExpressionPtr& operand : node.operands) {
    value = evaluate(*operand, scope);
    if (is_true(value) == stops_at) {
      break;
    }
  }
  return value;
}

Value Interpreter::evaluate_concatenation(const Expression& node, const ScopePtr& scope) {
  std::string text;
  for (const ExpressionPtr& operand : node.operands) {
    budget_.append(text, to_text(evaluate(*operand, scope), budget_));
  }
  return text;
}

Value Interpreter::evaluate_conditional(const Expression& node, const ScopePtr& scope) {
  if (is_true(evaluate(*node.operands[1], scope))) {
    return evaluate(*node.operands[0], scope);
  }
  if (node.operands[2]) {
    return evaluate(*node.operands[2], scope);
  }
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Arguments Interpreter::evaluate_arguments(const Expression& node, const ScopePtr& scope) {
  Arguments arguments;
  for (const Argument& argument : node.arguments) {
    Value value = evaluate(*argument.value, scope);
    if (argument.is_list) {
      std::ranges::move(elements_of(value, budget_), std::back_inserter(arguments.positional));
    } else if (argument.name.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(argument.name, std::move(value));
    }
  }
  line_ = node.line;
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& node, const ScopePtr& scope) {
  const Expression& named = *node.operands[0];
  const Value callee = evaluate(named, scope);
  const Arguments arguments = evaluate_arguments(node, scope);
  if (callee.is(Value::Kind::callable)) {
    return callee.callable().call(arguments);
  }
  if (callee.is_undefined() && named.kind == Expression::Kind::name) {
    throw NotSupported(concat("no function is named '", printable(named.name),
                              "'. Supported: ", join(function_names(), ", "), ", and the template's macros"));
  }
  if (callee.is_undefined() && named.kind == Expression::Kind::attribute) {
    throw NotSupported(concat("no method is named '", printable(named.name), "'. Supported: ", supported_methods()));
  }
  callee.require_defined();
  throw TemplateError(concat('\'', type_name(callee), "' object is not callable"));
}

Value Interpreter::evaluate_filter(const Expression& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.operands[0], scope);
  return apply_filter(node.name, value, evaluate_arguments(node, scope), budget_);
}

Value Interpreter::evaluate_test(const Expression& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.operands[0], scope);
  return apply_value_test(node.name, value, evaluate_arguments(node, scope), budget_);
}

} // namespace trireme::chat
