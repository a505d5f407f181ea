#include <trireme/tokenizer/split_behavior.h>

namespace trireme::tokenizer {

void Segments::add(size_t end, bool is_match) {
  const size_t begin = begin_;
  begin_ = end;
  bool grows = false; // this segment belongs to the pending word
  switch (behavior_) {
    case Behavior::isolated:
      return emit(begin, end);
    case Behavior::removed:
      return is_match ? void() : emit(begin, end);
    case Behavior::contiguous:
      grows = is_match == previous_match_;
      break;
    case Behavior::merged_with_previous:
      grows = is_match && !previous_match_;
      break;
    case Behavior::merged_with_next:
      grows = !is_match && previous_match_;
  }
  previous_match_ = is_match;
  if (has_pending_ && !grows) {
    emit(pending_, begin);
  }
  if (!has_pending_ || !grows) {
    pending_ = begin;
    has_pending_ = true;
  }
}

void Segments::finish() {
  if (has_pending_) {
    emit(pending_, begin_);
  }
}

} // namespace trireme::tokenizer
