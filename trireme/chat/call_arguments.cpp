#include <trireme/chat/call_arguments.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::chat {

CallArguments::CallArguments(const Arguments& arguments, std::string_view function,
                             std::initializer_list<const char*> parameters, size_t required)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters_.size()) {
    throw TemplateError(
        concat(function, "() takes at most ", parameters_.size(), " arguments, got ", arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(parameters_, std::string_view(name));
    if (found == parameters_.end()) {
      throw TemplateError(concat(function, "() has no argument '", name, '\''));
    }
    const Value*& place = values_[static_cast<size_t>(found - parameters_.begin())];
    if (place != nullptr) {
      throw TemplateError(concat(function, "() got the argument '", name, "' twice"));
    }
    place = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      throw TemplateError(concat(function, "() needs the argument '", parameters_[i], '\''));
    }
  }
}

const Value* CallArguments::find_unless_none(size_t parameter) const {
  const Value* const value = values_[parameter];
  return value == nullptr || value->is_none() ? nullptr : value;
}

bool CallArguments::flag(size_t parameter, bool instead) const {
  return values_[parameter] == nullptr ? instead : is_true(*values_[parameter]);
}

int64_t CallArguments::integer(size_t parameter, int64_t instead) const {
  const Value* const value = values_[parameter];
  if (value == nullptr) {
    return instead;
  }
  const auto number = number_of(*value);
  if (!number || number->is_real) {
    value->require_defined();
    throw TemplateError(
        concat(function_, "(): ", parameters_[parameter], " must be an integer, not ", type_name(*value)));
  }
  return number->integer;
}

const std::string& CallArguments::text(size_t parameter) const {
  const Value* const value = values_[parameter];
  if (value == nullptr || !value->is_text()) {
    if (value != nullptr) {
      value->require_defined();
    }
    throw TemplateError(concat(function_, "(): ", parameters_[parameter], " must be a text, not ",
                               value == nullptr ? "missing" : type_name(*value)));
  }
  return value->text();
}

} // namespace trireme::chat
