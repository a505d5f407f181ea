#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::zero {

enum class Pass { training, evaluation };

/// Remembers in which order a pass used the units, and tells the next pass what comes next.
/// After the first difference nothing is told until the pass is over.
class AccessOrder {
 public:
  void begin(Pass pass);
  /// The pass has come to `unit`.
  void note(const void* unit);
  /// Units that come after the last one noted, the next one first.
  std::span<const void* const> upcoming() const;

 private:
  struct Trace {
    std::vector<const void*> before;
    std::vector<const void*> now;
    bool as_before = true;
  };

  Trace traces_[2];
  Trace* trace_ = &traces_[0];
};

} // namespace trireme::zero
