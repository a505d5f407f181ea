#pragma once

#include <trireme/base/error.h>

#include <string>

namespace trireme {

/// What the InputError of action() says.
template <typename Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

} // namespace trireme
