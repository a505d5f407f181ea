#pragma once

#include <trireme/parallel/server/parameter_server.h>

namespace trireme::engine {

/// parallel::server::serve() for workers that are engines, and for those in other languages: their optimizer is a
/// configuration's "optimizer" section.
parallel::server::Counters serve_parameters(rpc::Server& server, parallel::server::ParameterServerOptions options);

} // namespace trireme::engine
