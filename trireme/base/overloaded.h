#pragma once

namespace trireme {

/// Combines several callables into one, for std::visit: Overloaded{[](const A&) {...}, [](const B&) {...}}.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

} // namespace trireme
