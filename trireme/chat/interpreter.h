#pragma once

#include <trireme/chat/functions.h>
#include <trireme/chat/scope.h>
#include <trireme/chat/syntax.h>

#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::chat {

/// Renders a parsed template once. Not thread-safe; the template is shared.
class Interpreter {
 public:
  Interpreter(Budget& budget, const std::optional<std::tm>& now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void set_variable(const std::string& name, Value value) { context_->set(name, std::move(value)); }

  /// Errors: TemplateError; line() says where.
  std::string run(const Body& body);

  /// The line that is being evaluated.
  int line() const { return line_; }
  /// First and last byte (exclusive) of what each generation block gave, after run().
  const std::vector<std::pair<size_t, size_t>>& generated() const { return generated_; }

 private:
  enum class Flow { normal, break_loop, continue_loop };

  Level deeper() { return {depth_, 600, "macros call each other too deeply"}; }

  // Statements: interpreter.cpp.
  Flow execute(const Body& body, const ScopePtr& scope, std::string& out);
  Flow execute(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_if(const IfStatement& statement, const ScopePtr& scope, std::string& out);
  Flow run_for(const ForStatement& statement, const ScopePtr& scope, std::string& out);
  Values chosen_elements(const ForStatement& statement, const ScopePtr& scope);
  Flow run_set_block(const SetBlockStatement& statement, const ScopePtr& scope);
  void run_generation(const GenerationStatement& statement, const ScopePtr& scope, std::string& out);
  void assign(const Target& target, Value value, const ScopePtr& values_from, Scope& to);
  Value make_macro(const MacroStatement& macro, const ScopePtr& scope);
  Value call_macro(const MacroStatement& macro, const ScopePtr& scope, const Arguments& arguments);

  // Expressions: evaluate.cpp.
  Value evaluate(const Expression& node, const ScopePtr& scope);
  Value evaluate_name(const Expression& node, const Scope& scope) const;
  Values evaluate_all(const Expression& node, const ScopePtr& scope);
  Value evaluate_dict(const Expression& node, const ScopePtr& scope);
  Value evaluate_slice(const Expression& node, const ScopePtr& scope);
  Value evaluate_arithmetic(const Expression& node, const ScopePtr& scope);
  Value evaluate_comparison(const Expression& node, const ScopePtr& scope);
  Value evaluate_either(const Expression& node, const ScopePtr& scope);
  Value evaluate_concatenation(const Expression& node, const ScopePtr& scope);
  Value evaluate_conditional(const Expression& node, const ScopePtr& scope);
  Value evaluate_call(const Expression& node, const ScopePtr& scope);
  Value evaluate_filter(const Expression& node, const ScopePtr& scope);
  Value evaluate_test(const Expression& node, const ScopePtr& scope);
  Arguments evaluate_arguments(const Expression& node, const ScopePtr& scope);

  Budget& budget_;
  Namespaces namespaces_;
  std::vector<ScopePtr> macro_scopes_; ///< hold macros that hold them
  ScopePtr context_ = std::make_shared<Scope>();
  const std::string* root_ = nullptr; ///< the text of the template itself
  std::vector<std::pair<size_t, size_t>> generated_;
  int line_ = 1;
  int depth_ = 0;
};

} // namespace trireme::chat
