#pragma once

#include <string>

namespace trireme::test {

/// The checkout and its build. Functions, not macros: objects of two checkouts are then the same, and ccache has them.
std::string source_dir();
std::string binary_dir();
/// The Python that ./test installs packages for, or that TRIREME_TEST_PYTHON names.
std::string python();

} // namespace trireme::test
