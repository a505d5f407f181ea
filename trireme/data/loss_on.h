#pragma once

namespace trireme::data {

/// Which tokens of a document in JSON lines count as targets of the loss.
enum class LossOn {
  response, ///< of a prompt with its response the response, of a conversation what the assistant says, of a text all
  all,      ///< every token
};

} // namespace trireme::data
