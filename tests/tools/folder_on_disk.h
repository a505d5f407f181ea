// A folder whose files are not memory, for tests of what ranks hold of it.
#pragma once

#include "shell.h"

#include <trireme/aio/probe.h>

namespace trireme::tools {

/// The folder of temporary files is memory on many machines (tmpfs), and what is written there counts as the control group's: then the build tree has the files.
inline std::filesystem::path folder_on_disk() {
  const std::filesystem::path usual = testing::TempDir();
  const std::string is = aio::filesystem_of(usual);
  return is == "tmpfs" || is == "ramfs" ? std::filesystem::path(TRIREME_BINARY_DIR) : usual;
}

class RunFolderOnDisk : public RunFolder {
 protected:
  RunFolderOnDisk() : RunFolder(folder_on_disk()) {}
};

} // namespace trireme::tools
