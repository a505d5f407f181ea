#pragma once

#include <cstdint>

namespace trireme::checkpoint {

/// Makes bytes [to_offset, to_offset + bytes) of the open file `to` those of `from` at from_offset, without copying:
/// both files have the same blocks on the disk until one of them is written to, which then gets new ones (FICLONERANGE:
/// XFS, Btrfs, NFS 4.2 and others). Offsets and bytes are multiples of the file system's blocks. Returns whether it
/// did; if not, `to` is as before.
bool share_blocks(int from, int64_t from_offset, int to, int64_t to_offset, int64_t bytes);

/// Bytes of a block of the file system that the open file is on.
int64_t block_bytes(int file);

} // namespace trireme::checkpoint
