#include <trireme/parallel/server/pieces.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::parallel::server {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kMostElements = int64_t{1} << 48;

} // namespace

int64_t ParameterInfo::row_numel() const {
  int64_t numel = 1;
  for (size_t dim = 1; dim < shape.size(); ++dim) {
    numel *= shape[dim];
  }
  return numel;
}

std::vector<Share> share_out(const std::vector<ParameterInfo>& parameters, int servers) {
  int64_t all = 0;
  for (const ParameterInfo& parameter : parameters) {
    all += parameter.bytes();
  }
  std::vector<Share> shares(servers);
  int64_t before = 0; // bytes of the parameters so far
  for (int64_t p = 0; p < static_cast<int64_t>(parameters.size()); ++p) {
    const ParameterInfo& parameter = parameters[p];
    const int64_t row = parameter.row_numel() * parameter.element_bytes();
    const auto cut = [&](int server) { // the row at which this server's share ends, the nearest to its part of all bytes
      const auto target = static_cast<int64_t>(static_cast<double>(all) * (server + 1) / servers) - before;
      return server == servers - 1 || row == 0 ? parameter.rows() : std::clamp((target + row / 2) / row, int64_t{0}, parameter.rows());
    };
    int64_t begin = 0;
    for (int server = 0; server < servers; ++server) {
      const int64_t end = std::max(begin, cut(server));
      if (end > begin) {
        Share& share = shares[server];
        share.pieces.push_back({p, begin, end, share.bytes});
        share.bytes += ((end - begin) * row + kAlignment - 1) / kAlignment * kAlignment;
      }
      begin = end;
    }
    before += parameter.bytes();
  }
  return shares;
}

ArrayLayout array_layout(const std::vector<ParameterInfo>& parameters, const Share& share) {
  ArrayLayout layout;
  for (const Piece& piece : share.pieces) {
    layout.offsets.push_back(layout.bytes);
    const int64_t bytes = (piece.end - piece.begin) * parameters[piece.parameter].row_numel() * kFloatBytes;
    layout.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return layout;
}

std::vector<ParameterInfo> read_parameters(const nlohmann::json& described) {
  std::vector<ParameterInfo> parameters;
  const auto fail = [](const std::string& what) { throw InputError("server", concat("a worker describes its parameters wrongly: ", what), "See docs/parameter_server.md, join."); };
  try {
    for (const nlohmann::json& one : described) {
      ParameterInfo& parameter = parameters.emplace_back();
      parameter.name = one.at("name").get<std::string>();
      parameter.shape = one.at("shape").get<std::vector<int64_t>>();
      parameter.type = one.value("dtype", "float32");
      parameter.weight_decay = one.value("weight_decay", -1.0);
      parameter.lr_factor = one.value("lr_factor", 1.0);
      if (parameter.type != "float32" && parameter.type != "bfloat16" && parameter.type != "float16") {
        fail(concat('"', parameter.name, "\" has the dtype \"", parameter.type, "\", not float32, bfloat16 or float16"));
      }
      int64_t numel = 1;
      for (const int64_t size : parameter.shape) {
        if (size < 0 || (size > 0 && numel > kMostElements / size)) {
          fail(concat('"', parameter.name, "\" has a dimension of ", size));
        }
        numel *= size;
      }
    }
  } catch (const nlohmann::json::exception& error) {
    fail(error.what());
  }
  if (parameters.empty()) {
    fail("there are none");
  }
  return parameters;
}

nlohmann::json describe(const std::vector<ParameterInfo>& parameters) {
  nlohmann::json described = nlohmann::json::array();
  for (const ParameterInfo& parameter : parameters) {
    nlohmann::json& one = described.emplace_back(nlohmann::json{{"name", parameter.name}, {"shape", parameter.shape}, {"dtype", parameter.type}});
    if (parameter.weight_decay >= 0) {
      one["weight_decay"] = parameter.weight_decay;
    }
    if (parameter.lr_factor != 1) {
      one["lr_factor"] = parameter.lr_factor;
    }
  }
  return described;
}

} // namespace trireme::parallel::server
