#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Notes what this thread does while the object lives: "forward of micro-batch 5", inside it "layer 7 (ReLU)".
///
///   const Note note("layer", 7, type);   // type: a literal, or from keep_name()
///
/// For hang reports: another thread reads it with current_notes(), also while this thread is stuck. Cost: a clock read
/// and a few relaxed stores, about 30 ns; no lock, no allocation. Notes beyond 16 levels or 64 threads are dropped.
class Note {
 public:
  /// `what` and `detail` must never be freed. A `number` below 0 and a null `detail` are left out.
  explicit Note(const char* what, int64_t number = -1, const char* detail = nullptr) noexcept;
  ~Note();
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;

 private:
  void* slot_;
};

/// A copy of `name` that is never freed; equal texts get the same one. Locks and allocates: for set-up code.
const char* keep_name(std::string_view name);

/// One note, as other threads read it.
struct NoteView {
  std::string what;
  int64_t number = -1;
  std::string detail;
  /// Age of the note.
  double seconds = 0;
};

struct ThreadNotes {
  /// The kernel's thread id; the main thread has that of the process.
  int64_t thread = 0;
  bool main = false;
  /// Outermost first.
  std::vector<NoteView> notes;
};

/// The threads of this process that have notes, the main one first. Any thread may call it.
std::vector<ThreadNotes> current_notes();

/// `layer 7 (ReLU)`.
std::string describe(const NoteView& note);

} // namespace trireme
