#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// Options of a program, each a name and a value: --steps 100.
class Arguments {
 public:
  Arguments(int argc, char** argv) : rest_(argv + 1, argv + argc) {}

  /// Removes an option and returns its value, or `default_value` if it is not given.
  std::string text(const std::string& name, std::string default_value = "") {
    for (size_t i = 0; i < rest_.size(); i += 2) {
      if (rest_[i] == name) {
        if (i + 1 == rest_.size()) {
          throw std::invalid_argument(name + " needs a value");
        }
        default_value = rest_[i + 1];
        rest_.erase(rest_.begin() + static_cast<std::ptrdiff_t>(i), rest_.begin() + static_cast<std::ptrdiff_t>(i) + 2);
        break;
      }
    }
    return default_value;
  }
  int whole(const std::string& name, int default_value) {
    const std::string given = text(name, std::to_string(default_value));
    char* end = nullptr;
    const long value = std::strtol(given.c_str(), &end, 10);
    if (given.empty() || *end != '\0' || value < 1 || value > 1'000'000'000) {
      throw std::invalid_argument(name + " takes a whole number of at least 1, got \"" + given + '"');
    }
    return static_cast<int>(value);
  }
  /// Call last: what is left is an option that does not exist.
  void finish() const {
    if (!rest_.empty()) {
      throw std::invalid_argument("there is no option \"" + rest_.front() +
                                  "\"; the first lines of the source list them all");
    }
  }

 private:
  std::vector<std::string> rest_;
};
