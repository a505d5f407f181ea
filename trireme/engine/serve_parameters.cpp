#include <trireme/engine/serve_parameters.h>

#include <trireme/base/json.h>
#include <trireme/config/optimizer_json.h>

namespace trireme::engine {

parallel::server::Counters serve_parameters(rpc::Server& server, parallel::server::ParameterServerOptions options) {
  options.read_optimizer = [](const std::string& text) {
    const JsonNode section = JsonNode::parse(text, "the workers' optimizer");
    return config::read_optimizer(&section).value_or(optim::OptimizerOptions());
  };
  return parallel::server::serve(server, options);
}

} // namespace trireme::engine
