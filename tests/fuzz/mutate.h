#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace trireme::fuzz {

/// Draws inputs from a corpus and changes them: bits, bytes, runs, numbers, words of other inputs. The same corpus and
/// seed give the same inputs on every machine.
class Mutator {
 public:
  /// `corpus` is not empty.
  Mutator(std::vector<std::string> corpus, uint64_t seed, size_t most_bytes);
  std::string next();

 private:
  size_t below(size_t limit);
  void change(std::string& input);
  void change_number(std::string& input);
  void insert(std::string& input, const std::string& what);

  std::vector<std::string> corpus_;
  std::vector<std::string> words_;
  std::mt19937_64 random_;
  size_t most_bytes_;
};

} // namespace trireme::fuzz
