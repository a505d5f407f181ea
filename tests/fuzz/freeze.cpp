// An expression of "training.freeze", and names of parameters.
#include "fuzz.h"

#include <trireme/config/freeze.h>

#include <algorithm>
#include <vector>

using namespace trireme;
using namespace trireme::fuzz;

/// The expression, and after the first line end a name a line.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, std::min<size_t>(size, 400));
  const config::FreezeOptions options{{{std::string(take_until(rest, '\n')), "fuzz"}}};
  std::vector<std::string> names;
  while (!rest.empty()) {
    names.emplace_back(take_until(rest, '\n'));
  }
  allow_input_error([&] {
    const std::vector<bool> frozen = config::frozen_of_all(options, names);
    require(frozen.size() == names.size(), "each name has an answer");
    require(std::count(frozen.begin(), frozen.end(), true) > 0, "something is frozen");
    require(std::count(frozen.begin(), frozen.end(), false) > 0, "something is left to train");
    require(frozen == config::frozen_among(options, names), "both say the same");
  });
  return 0;
}
