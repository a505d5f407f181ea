#pragma once

namespace gloo::transport {

/// Has a virtual destructor in libtorch; c10d's SendWork and RecvWork hold it by pointer.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

} // namespace gloo::transport
