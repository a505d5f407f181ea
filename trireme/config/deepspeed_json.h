#pragma once

#include <trireme/base/json.h>
#include <trireme/config/auto_values.h>
#include <trireme/config/engine_config.h>


namespace trireme::config {

/// Reads a DeepSpeed configuration. docs/configuration.md lists what becomes of each key:
/// honoured, no effect (a sentence in `notes`), not yet, or refused.
///
/// A key that asks for nothing (a section that is disabled, a value that is the default)
/// is accepted whatever its verdict; in a section that says it is off nothing is an error. null counts as absent.
/// "auto" is what `known` says.
/// Errors: InputError "file:line:column: key.path: what. What to do instead."
EngineConfig read_deepspeed(const JsonNode& node, const AutoValues& known = {});

} // namespace trireme::config
