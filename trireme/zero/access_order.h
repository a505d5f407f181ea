#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace trireme::zero {

enum class Pass { training, evaluation };

/// Remembers in which order units were used, and tells what comes next. A pass is one stretch, or several whose order
/// is known before: the computations of a pipeline's schedule. Stretches of one number use the same units in the same
/// order, so one that has run once is known wherever it comes again. After the first difference nothing is told until
/// the stretch is over.
class AccessOrder {
 public:
  /// A pass of one stretch begins.
  void begin(Pass pass);
  /// A pass of these stretches (numbers from 0 on) begins; next_stretch() begins each of them.
  void begin(std::vector<int> stretches);
  void next_stretch();
  /// The stretch has come to `unit`.
  void note(const void* unit);
  /// Calls visit(unit) for the units that come after the last one noted, the next one first, as far as they are known
  /// and until it returns false.
  void for_each_upcoming(const std::function<bool(const void* unit)>& visit) const;

  /// The same for the units with which the next pass begins if it is like this one.
  void for_each_of_next_pass(const std::function<bool(const void* unit)>& visit) const;

 private:
  void end_stretch();

  std::map<int, std::vector<const void*>> known_; // by stretch
  std::vector<int> stretches_;
  size_t begun_ = 0; // of stretches_
  std::optional<int> running_;
  std::vector<const void*> now_;
  bool as_before_ = true;
};

} // namespace trireme::zero
