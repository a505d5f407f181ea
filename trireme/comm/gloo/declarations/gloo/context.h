#pragma once

#include <chrono>
#include <memory>

#include <gloo/transport/unbound_buffer.h>

// libtorch contains gloo but ships none of its headers, and c10d's ProcessGroupGloo.hpp
// names a handful of gloo's types. These declarations name them too: only member
// functions that libtorch exports are declared, and no object of these types is ever
// made, copied or measured on our side, so their layout does not matter here.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
