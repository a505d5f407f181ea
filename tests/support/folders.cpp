#include <tests/support/folders.h>

#include <cstdlib>

namespace trireme::test {

std::string source_dir() {
  return TRIREME_SOURCE_DIR;
}

std::string binary_dir() {
  return TRIREME_BINARY_DIR;
}

std::string python() {
  const char* chosen = std::getenv("TRIREME_TEST_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : source_dir() + "/.venv/bin/python";
}

} // namespace trireme::test
