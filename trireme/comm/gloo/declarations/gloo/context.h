#pragma once

#include <chrono>
#include <memory>

#include <gloo/transport/unbound_buffer.h>

// libtorch contains gloo without its headers, and c10d's ProcessGroupGloo.hpp names some of gloo's
// types. These declarations name them too. Only member functions that libtorch exports are declared, and
// our code never creates, copies or measures objects of these types, so their layout does not matter
// here.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
