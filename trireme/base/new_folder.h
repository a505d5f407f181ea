#pragma once

#include <trireme/base/descriptor.h>

#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

/// A folder that appears whole or not at all: it is made under a name of its own beside its place, and renamed at the
/// end. The place may have a folder, which is then replaced; a link to one is followed.
class NewFolder {
 public:
  /// `area`: of errors. Until the end its name is `before` NAME `behind` and a random number. Folders of such names
  /// that no process holds any more are removed. Errors: as check_place(); Error if the system refuses.
  NewFolder(std::string area, const std::filesystem::path& place, const std::string& before, const std::string& behind);
  /// Removes the folder unless it has taken its place.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write.
  const std::filesystem::path& path() const { return made_; }
  /// Absolute.
  const std::filesystem::path& place() const { return place_; }

  /// Renames the folder, whose files must be on the disk. `check` throws InputError if what is at the place must stay;
  /// it is asked again about what the folder has replaced, which is put back then, else removed. Errors: those of
  /// `check`; Error if the system refuses.
  void take_place(const std::function<void(const std::filesystem::path& there)>& check);
  /// Keeps the folder under a name that no process takes for a left one, and returns that.
  std::filesystem::path keep();

  /// Errors: InputError of `area` for a mount point, and for a place whose parent is no folder or may not be written.
  static void check_place(const std::string& area, const std::filesystem::path& place);

 private:
  bool rename_by(unsigned how) const;
  void make();
  void remove_left() const;

  std::string area_;
  std::filesystem::path place_, made_;
  std::string prefix_;
  Descriptor lock_; // held as long as this process writes
};

} // namespace trireme
