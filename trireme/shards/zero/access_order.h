#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace trireme::zero {

enum class Pass { training, evaluation };

/// Records the order in which units are used and predicts the next ones. A pass is one stretch, or several in a known
/// order: the computations of a pipeline's schedule. Stretches with the same number use the same units in the same
/// order, so one run of a stretch predicts all later ones. After the first difference nothing is predicted until the
/// stretch ends.
class AccessOrder {
 public:
  /// Begins a pass of one stretch.
  void begin(Pass pass);
  /// Begins a pass of these stretches (numbers from 0 on); next_stretch() begins each of them.
  void begin(std::vector<int> stretches);
  void next_stretch();
  /// Records that the stretch uses `unit` now.
  void note(const void* unit);
  /// Calls visit(unit) for the units predicted after the last one noted, the next one first, until visit returns
  /// false.
  void for_each_upcoming(const std::function<bool(const void* unit)>& visit) const;

  /// The same for the first units of the next pass, assuming it is like this one.
  void for_each_of_next_pass(const std::function<bool(const void* unit)>& visit) const;

 private:
  void end_stretch();

  std::map<int, std::vector<const void*>> known_; // by stretch
  std::vector<int> stretches_;
  size_t begun_ = 0; // begun stretches_
  std::optional<int> running_;
  std::vector<const void*> now_;
  bool as_before_ = true;
};

} // namespace trireme::zero
