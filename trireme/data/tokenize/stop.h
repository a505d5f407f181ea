#pragma once

#include <trireme/base/error.h>

#include <functional>
#include <string_view>

namespace trireme::data {

/// Asked now and then while text is tokenized: true ends the work. Null: nothing does.
using Stop = std::function<bool()>;

/// Errors: Error if the work is to end; `doing`: "tokenizing".
inline void check_stop(const Stop& stop, std::string_view doing) {
  if (stop && stop()) {
    throw Error("data", concat("asked to end while ", doing));
  }
}

} // namespace trireme::data
