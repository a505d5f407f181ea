#pragma once

#include <trireme/base/json.h>
#include <trireme/config/auto_values.h>
#include <trireme/config/engine_config.h>

namespace trireme::config {

/// Reads a DeepSpeed configuration. docs/configuration.md lists how each key is treated:
/// honoured, no effect (a sentence in `notes`), not yet, or refused.
///
/// A key without effect (a disabled section, a default value) is accepted with any
/// verdict; nothing in a disabled section is an error. null counts as absent.
/// `known` gives the values of "auto".
/// Errors: InputError "file:line:column: key.path: what. What to do instead."
EngineConfig read_deepspeed(const JsonNode& node, const AutoValues& known = {});

} // namespace trireme::config
