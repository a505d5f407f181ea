#pragma once

#include "shell.h"

#include <tests/support/folder_on_disk.h>

namespace trireme::tools {

class RunFolderOnDisk : public RunFolder {
 protected:
  RunFolderOnDisk() : RunFolder(test::folder_on_disk()) {}
};

} // namespace trireme::tools
