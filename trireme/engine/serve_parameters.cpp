#include <trireme/engine/serve_parameters.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/config/deepspeed_json.h>

namespace trireme::engine {

parallel::server::Counters serve_parameters(rpc::Server& server, parallel::server::ParameterServerOptions options) {
  options.read_optimizer = [](const std::string& text) {
    const std::string whole = concat(R"({"train_batch_size": 1, "optimizer": )", text, '}');
    return config::read_deepspeed(JsonNode::parse(whole, "the workers' optimizer")).optimizer_or_adamw();
  };
  return parallel::server::serve(server, options);
}

} // namespace trireme::engine
