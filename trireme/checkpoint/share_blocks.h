#pragma once

#include <cstdint>

namespace trireme::checkpoint {

/// Makes bytes [to_offset, to_offset + bytes) of the open file `to` share the blocks of `from` at from_offset, without
/// copying. A later write to one of the files gives it new blocks (FICLONERANGE: XFS, Btrfs, NFS 4.2 and others).
/// Offsets and bytes are multiples of the file system's block size. Returns false, with `to` unchanged, if the system
/// cannot.
bool share_blocks(int from, int64_t from_offset, int to, int64_t to_offset, int64_t bytes);

/// Block size in bytes of the file system of an open file.
int64_t block_bytes(int file);

} // namespace trireme::checkpoint
