#pragma once

namespace trireme::checkpoint {

/// The next so many FICLONERANGE calls of this process succeed, by copying, as on a file system that shares blocks of
/// 4096 bytes; those after them are refused. 0: the file system decides.
extern int fake_clones;

} // namespace trireme::checkpoint
