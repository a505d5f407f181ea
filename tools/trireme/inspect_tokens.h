#pragma once

#include "commands.h"

namespace trireme::tools {

/// `trireme inspect` of a folder of token shards, a shard, or Megatron's pair of files. Reads all tokens of shards, and
/// returns 1 if one has another checksum than its header.
int inspect_tokens(const InspectCommand& command);

} // namespace trireme::tools
