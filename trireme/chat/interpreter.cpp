#include <trireme/chat/interpreter.h>

#include <trireme/base/error.h>
#include <trireme/base/overloaded.h>
#include <trireme/chat/show.h>

#include <algorithm>

namespace trireme::chat {

Interpreter::Interpreter(Budget& budget, const std::optional<std::tm>& now) : budget_(budget) {
  set_functions(*context_, namespaces_, now, budget);
}

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Namespace>& name_space : namespaces_) {
    name_space->attributes = {};
  }
  for (const ScopePtr& scope : macro_scopes_) {
    scope->clear();
  }
}

std::string Interpreter::run(const Body& body) {
  std::string out;
  root_ = &out;
  execute(body, std::make_shared<Scope>(context_), out);
  root_ = nullptr;
  return out;
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope, std::string& out) {
  const Depth depth(*this);
  for (const Statement& statement : body) {
    budget_.spend();
    line_ = statement.line;
    const Flow flow = execute(statement, scope, out);
    if (flow != Flow::normal) {
      return flow;
    }
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, const ScopePtr& scope, std::string& out) {
  return std::visit(Overloaded{[&](const TextStatement& what) {
                                 budget_.append(out, what.text);
                                 return Flow::normal;
                               },
                               [&](const PrintStatement& what) {
                                 budget_.append(out, to_text(evaluate(*what.value, scope), budget_));
                                 return Flow::normal;
                               },
                               [&](const IfStatement& what) { return run_if(what, scope, out); },
                               [&](const ForStatement& what) { return run_for(what, scope, out); },
                               [&](const SetStatement& what) {
                                 assign(what.target, evaluate(*what.value, scope), scope, *scope);
                                 return Flow::normal;
                               },
                               [&](const SetBlockStatement& what) { return run_set_block(what, scope); },
                               [&](const MacroStatement& what) {
                                 scope->set(what.name, make_macro(what, scope));
                                 return Flow::normal;
                               },
                               [&](const CallStatement& what) {
                                 run_call(what, scope, out);
                                 return Flow::normal;
                               },
                               [&](const FilterStatement& what) { return run_filter(what, scope, out); },
                               [&](const WithStatement& what) { return run_with(what, scope, out); },
                               [&](const GenerationStatement& what) {
                                 run_generation(what, scope, out);
                                 return Flow::normal;
                               },
                               [](const BreakStatement&) { return Flow::break_loop; },
                               [](const ContinueStatement&) { return Flow::continue_loop; }},
                    statement.what);
}

Interpreter::Flow Interpreter::run_if(const IfStatement& statement, const ScopePtr& scope, std::string& out) {
  for (const auto& [condition, body] : statement.branches) {
    if (!condition || is_true(evaluate(*condition, scope))) {
      return execute(body, scope, out);
    }
  }
  return Flow::normal;
}

Values Interpreter::chosen_elements(const ForStatement& statement, const ScopePtr& scope) {
  Values elements = elements_of(evaluate(*statement.elements, scope), budget_);
  if (!statement.condition) {
    return elements;
  }
  Values chosen;
  for (Value& element : elements) {
    const auto inner = std::make_shared<Scope>(scope);
    assign(statement.target, element, scope, *inner);
    if (is_true(evaluate(*statement.condition, inner))) {
      chosen.push_back(std::move(element));
    }
  }
  return chosen;
}

Interpreter::Flow Interpreter::run_for(const ForStatement& statement, const ScopePtr& scope, std::string& out) {
  const auto loop = std::make_shared<Loop>();
  loop->elements = chosen_elements(statement, scope);
  for (const Value& element : loop->elements) {
    loop->nesting = std::max(loop->nesting, element.nesting() + 1);
  }
  if (loop->nesting > kMostNesting) {
    throw TemplateError("loops over each other lie too deep");
  }
  const bool completed = run_loop(statement, loop, scope, out);
  loop->ended = true;
  loop->last_changed.reset();
  loop->index = loop->elements.empty() ? 0 : std::min(loop->index, loop->elements.size() - 1);
  if (completed || statement.otherwise.empty()) {
    return Flow::normal;
  }
  return execute(statement.otherwise, std::make_shared<Scope>(scope), out);
}

// Whether an iteration came to the end of the body: as in Jinja, one that breaks or continues does not count.
bool Interpreter::run_loop(const ForStatement& statement, const std::shared_ptr<Loop>& loop, const ScopePtr& scope,
                           std::string& out) {
  bool completed = false;
  for (loop->index = 0; loop->index < loop->elements.size(); ++loop->index) {
    budget_.spend();
    const auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", loop);
    assign(statement.target, loop->elements[loop->index], scope, *inner);
    const Flow flow = execute(statement.body, inner, out);
    if (flow == Flow::break_loop) {
      return completed;
    }
    completed = completed || flow == Flow::normal;
  }
  return completed;
}

// A break in the body drops what the body made, here and in a filter block.
Interpreter::Flow Interpreter::run_set_block(const SetBlockStatement& statement, const ScopePtr& scope) {
  std::string text;
  const Flow flow = execute(statement.body, std::make_shared<Scope>(scope), text);
  if (flow == Flow::normal) {
    Value value = std::move(text);
    if (statement.filter) {
      value = evaluate_filter(*statement.filter, scope, &value);
    }
    assign(statement.target, std::move(value), scope, *scope);
  }
  return flow;
}

void Interpreter::run_call(const CallStatement& statement, const ScopePtr& scope, std::string& out) {
  const Value caller = make_macro(statement.caller, scope);
  budget_.append(out, to_text(evaluate_call(*statement.call, scope, &caller), budget_));
}

Interpreter::Flow Interpreter::run_filter(const FilterStatement& statement, const ScopePtr& scope, std::string& out) {
  const auto inner = std::make_shared<Scope>(scope);
  std::string text;
  const Flow flow = execute(statement.body, inner, text);
  if (flow == Flow::normal) {
    const Value value = std::move(text);
    budget_.append(out, to_text(evaluate_filter(*statement.filter, inner, &value), budget_));
  }
  return flow;
}

Interpreter::Flow Interpreter::run_with(const WithStatement& statement, const ScopePtr& scope, std::string& out) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, value] : statement.values) {
    assign(target, evaluate(*value, scope), scope, *inner);
  }
  return execute(statement.body, inner, out);
}

void Interpreter::run_generation(const GenerationStatement& statement, const ScopePtr& scope, std::string& out) {
  std::string text;
  execute(statement.body, std::make_shared<Scope>(scope), text);
  generated_.emplace_back(root_->size(), root_->size() + text.size());
  budget_.append(out, text);
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& values_from, Scope& to) {
  if (target.kind == Target::Kind::name) {
    to.set(target.name, std::move(value));
    return;
  }
  if (target.kind == Target::Kind::attribute) {
    const Value* const owner = values_from->find(target.name);
    if (owner == nullptr || !owner->is(Value::Kind::name_space)) {
      throw TemplateError(concat("cannot set an attribute of '", target.name, "', which is not a namespace"));
    }
    if (target.attribute.starts_with('_')) {
      throw TemplateError(concat("a namespace has no attributes that begin with _, got ", target.attribute));
    }
    owner->name_space().attributes.set(target.attribute, std::move(value), budget_);
    return;
  }
  Values parts = elements_of(value, budget_);
  if (parts.size() != target.targets.size()) {
    throw TemplateError(concat("cannot unpack ", parts.size(), " values into ", target.targets.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    assign(target.targets[i], std::move(parts[i]), values_from, to);
  }
}

Value Interpreter::make_macro(const MacroStatement& macro, const ScopePtr& scope) {
  if (macro_scopes_.empty() || macro_scopes_.back() != scope) {
    macro_scopes_.push_back(scope);
  }
  const auto call = [this, &macro, scope](const Arguments& arguments) { return call_macro(macro, scope, arguments); };
  return std::make_shared<const Callable>(Callable{macro.name, call, 1, /*is_macro=*/true});
}

Value Interpreter::call_macro(const MacroStatement& macro, const ScopePtr& scope, const Arguments& arguments) {
  const std::vector<std::string>& parameters = macro.signature.parameters;
  const auto inner = std::make_shared<Scope>(scope);
  const size_t given = std::min(arguments.positional.size(), parameters.size());
  for (size_t i = 0; i < given; ++i) {
    inner->set(parameters[i], arguments.positional[i]);
  }
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    const auto found = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
    if (found == named.end()) {
      return std::nullopt;
    }
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  const size_t first_default = parameters.size() - macro.signature.defaults.size();
  for (size_t i = given; i < parameters.size(); ++i) {
    if (auto value = take(parameters[i])) {
      inner->set(parameters[i], *std::move(value));
    } else if (i >= first_default) {
      inner->set(parameters[i], evaluate(*macro.signature.defaults[i - first_default], inner));
    } else {
      inner->set(parameters[i], Value::undefined(concat("parameter '", parameters[i], "' was not provided")));
    }
  }
  if (macro.uses_caller && std::ranges::find(parameters, "caller") == parameters.end()) {
    inner->set("caller", take("caller").value_or(Value::undefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    Mapping rest;
    for (auto& [name, value] : named) {
      rest.set(name, std::move(value), budget_);
    }
    inner->set("kwargs", make_mapping(std::move(rest)));
  } else if (!named.empty()) {
    throw TemplateError(concat("macro '", macro.name, "' takes no keyword argument '", named.front().first, '\''));
  }
  if (macro.uses_varargs) {
    Values rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given), arguments.positional.end());
    inner->set("varargs", make_sequence(Sequence::Type::tuple, std::move(rest), budget_));
  } else if (arguments.positional.size() > parameters.size()) {
    throw TemplateError(concat("macro '", macro.name, "' takes not more than ", parameters.size(), " arguments"));
  }
  std::string text;
  execute(macro.body, inner, text);
  return text;
}

} // namespace trireme::chat
