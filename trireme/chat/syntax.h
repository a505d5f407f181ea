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

/// An argument of a call, a filter or a test.
struct Argument {
  enum class Kind { positional, named, list, dict }; ///< the last two: *value and **value
  Kind kind = Kind::positional;
  std::string name;
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
    negate,    ///< operands[0]; so for the next two
    affirm,
    not_,
    arithmetic, ///< operands[0] names[0] operands[1] names[1] operands[2] ..., from left to right
    comparison, ///< a chain of the same form
    and_,       ///< operands, from left to right; so for the next two
    or_,
    concatenate,
    conditional, ///< operands[0] if operands[1] else operands[2], which may be null
    call,        ///< operands[0](arguments)
    filter,      ///< operands[0] | name(arguments); operands[0] is null in a filter block
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

/// What `set` and `for` assign to.
struct Target {
  enum class Kind { name, attribute, tuple }; ///< attribute: of a namespace
  Kind kind = Kind::name;
  int line = 0;
  std::string name = {};
  std::string attribute = {};
  std::vector<Target> targets = {};
};

struct Statement;
using Body = std::vector<Statement>;

/// Of a macro or a call block. `defaults` belong to the last parameters.
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
  ExpressionPtr filter; ///< may be null
  Body body;
};
struct MacroStatement {
  std::string name;
  Signature signature;
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};
struct CallStatement {
  ExpressionPtr call;
  MacroStatement caller;
};
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
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
               MacroStatement, CallStatement, FilterStatement, WithStatement, GenerationStatement, BreakStatement,
               ContinueStatement>
      what;
};

} // namespace trireme::chat
