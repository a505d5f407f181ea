#pragma once

#include <trireme/data/tokenize/block.h>

#include <functional>

namespace trireme::data {

/// Makes blocks in one thread, encodes them in `threads` others, and takes them in order in the caller's.
///
/// `make` calls what it is given for each block, until that returns false: an error has ended the work. `encode` gets
/// blocks without Block::error and must not throw. What `make` throws comes to `take` as the error of a last block;
/// what `take` throws ends the threads. Memory: twice as many blocks as threads, and two, of at most 32 MiB of text
/// together; a block of more, a long JSON line, is worked on alone.
using GiveBlock = std::function<bool(Block)>;
void encode_blocks(int threads, const std::function<void(const GiveBlock& give)>& make,
                   const std::function<void(Block&)>& encode, const std::function<void(Block)>& take);

} // namespace trireme::data
