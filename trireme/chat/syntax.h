#pragma once

#include <trireme/chat/value.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// A parsed template. Const after parsing.
namespace trireme::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// An argument of a call, a filter or a test. Named ones come last.
struct Argument {
  std::string name;     ///< empty: positional
  bool is_list = false; ///< *value: its elements are positional arguments
  ExpressionPtr value;
};

struct Expression {
  enum class Kind {
    literal,   ///< value
    name,      ///< name
    list,      ///< operands
    tuple,     ///< operands
    dict,      ///< operands: key, value, key, value
    attribute, ///< operands[0].name
    item,      ///< operands[0][operands[1]]
    slice,     ///< operands[0][operands[1]:operands[2]:operands[3]], each of the last three may be null
    negate,    ///< operands[0]; so for the next
    not_,
    arithmetic, ///< operands[0] names[0] operands[1] names[1] operands[2] ..., from left to right
    comparison, ///< a chain of the same form
    and_,       ///< operands, from left to right; so for the next two
    or_,
    concatenate,
    conditional, ///< operands[0] if operands[1] else operands[2], which may be null
    call,        ///< operands[0](arguments)
    filter,      ///< operands[0] | name(arguments)
    test,        ///< operands[0] is name(arguments)
  };
  Kind kind = Kind::literal;
  int line = 0;
  int depth = 1; ///< of the tree below it
  Value value = {};
  std::string name = {};
  std::vector<ExpressionPtr> operands = {};
  std::vector<std::string> names = {};
  std::vector<Argument> arguments = {};
};

/// What `set` and `for` assign to: a name, an attribute of a namespace, or several names.
struct Target {
  std::vector<std::string> names;
  std::string attribute; ///< of names[0]; empty: none
};

struct Statement;
using Body = std::vector<Statement>;

/// Of a macro. `defaults` belong to the last parameters.
struct Signature {
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;
};

struct TextStatement {
  std::string text;
};
struct PrintStatement {
  ExpressionPtr value;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches; ///< the condition of `else` is null
};
struct ForStatement {
  Target target;
  ExpressionPtr elements;
  ExpressionPtr condition; ///< may be null
  Body body;
  Body otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  Body body;
};
struct MacroStatement {
  std::string name;
  Signature signature;
  Body body;
};
struct GenerationStatement {
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  int line = 0;
  std::variant<TextStatement, PrintStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement,
               MacroStatement, GenerationStatement, BreakStatement, ContinueStatement>
      what;
};

} // namespace trireme::chat
