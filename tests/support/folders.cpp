#include <tests/support/folders.h>

namespace trireme::test {

std::string source_dir() {
  return TRIREME_SOURCE_DIR;
}

std::string binary_dir() {
  return TRIREME_BINARY_DIR;
}

} // namespace trireme::test
