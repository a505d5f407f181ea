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
  const Level level = deeper();
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
  for (; loop->index < loop->elements.size(); ++loop->index) {
    budget_.spend();
    const auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", loop);
    assign(statement.target, loop->elements[loop->index], scope, *inner);
    if (execute(statement.body, inner, out) == Flow::break_loop) {
      return Flow::normal;
    }
  }
  if (loop->elements.empty()) {
    return execute(statement.otherwise, std::make_shared<Scope>(scope), out);
  }
  loop->index = loop->elements.size() - 1; // a macro may still see it
  return Flow::normal;
}

// A break in the body drops what the body made.
Interpreter::Flow Interpreter::run_set_block(const SetBlockStatement& statement, const ScopePtr& scope) {
  std::string text;
  const Flow flow = execute(statement.body, std::make_shared<Scope>(scope), text);
  if (flow == Flow::normal) {
    assign(statement.target, std::move(text), scope, *scope);
  }
  return flow;
}

void Interpreter::run_generation(const GenerationStatement& statement, const ScopePtr& scope, std::string& out) {
  std::string text;
  execute(statement.body, std::make_shared<Scope>(scope), text);
  generated_.emplace_back(root_->size(), root_->size() + text.size());
  budget_.append(out, text);
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& values_from, Scope& to) {
  for (const std::string& name : target.names) {
    budget_.spend_pass(name.size());
  }
  budget_.spend_pass(target.attribute.size());
  if (!target.attribute.empty()) {
    const Value* const owner = values_from->find(target.names.front());
    if (owner == nullptr || !owner->is(Value::Kind::name_space)) {
      throw TemplateError(concat("cannot set an attribute of '", target.names.front(), "', which is not a namespace"));
    }
    owner->name_space().attributes.set(target.attribute, std::move(value), budget_);
    return;
  }
  if (target.names.size() == 1) {
    to.set(target.names.front(), std::move(value));
    return;
  }
  Values parts = elements_of(value, budget_);
  if (parts.size() != target.names.size()) {
    throw TemplateError(concat("cannot unpack ", parts.size(), " values into ", target.names.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    to.set(target.names[i], std::move(parts[i]));
  }
}

Value Interpreter::make_macro(const MacroStatement& macro, const ScopePtr& scope) {
  budget_.spend(4 * Budget::kStepsOfObject); // the scope is kept
  if (macro_scopes_.empty() || macro_scopes_.back() != scope) {
    macro_scopes_.push_back(scope);
  }
  const auto call = [this, &macro, scope](const Arguments& arguments) { return call_macro(macro, scope, arguments); };
  return std::make_shared<const Callable>(Callable{macro.name, call, 1});
}

Value Interpreter::call_macro(const MacroStatement& macro, const ScopePtr& scope, const Arguments& arguments) {
  const std::vector<std::string>& parameters = macro.signature.parameters;
  if (arguments.positional.size() > parameters.size()) {
    throw TemplateError(concat("macro '", macro.name, "' takes not more than ", parameters.size(), " arguments"));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(parameters, name);
    if (found == parameters.end() || found - parameters.begin() < std::ssize(arguments.positional)) {
      throw TemplateError(concat("macro '", macro.name, "' takes no keyword argument '", name, '\''));
    }
  }
  budget_.spend(parameters.size() * (1 + arguments.named.size()));
  const auto inner = std::make_shared<Scope>(scope);
  const size_t first_default = parameters.size() - macro.signature.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto named = std::ranges::find(arguments.named, parameters[i], &std::pair<std::string, Value>::first);
    if (i < arguments.positional.size()) {
      inner->set(parameters[i], arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      inner->set(parameters[i], named->second);
    } else if (i >= first_default) {
      inner->set(parameters[i], evaluate(*macro.signature.defaults[i - first_default], inner));
    } else {
      inner->set(parameters[i], Value::undefined(concat("parameter '", parameters[i], "' was not provided")));
    }
  }
  std::string text;
  execute(macro.body, inner, text);
  return text;
}

} // namespace trireme::chat
