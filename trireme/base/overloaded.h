#pragma once

namespace trireme {

/// One callable out of several, for std::visit: Overloaded{[](const A&) {...}, [](const B&) {...}}.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

} // namespace trireme
