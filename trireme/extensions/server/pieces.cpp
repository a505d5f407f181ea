#include <trireme/extensions/server/pieces.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::parallel::server {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kNumberBytes = 8;
constexpr int64_t kMostElements = int64_t{1} << 48;

int64_t padded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Assigns offsets to the pieces, sparse ones last.
void place(Share& share, const std::vector<ParameterInfo>& parameters) {
  for (const bool sparse : {false, true}) {
    for (RowRange& piece : share.pieces) {
      const ParameterInfo& parameter = parameters[piece.parameter];
      if (parameter.sparse == sparse) {
        piece.offset = share.bytes;
        share.bytes += padded((piece.end - piece.begin) * parameter.row_numel() * parameter.element_bytes());
      }
    }
    share.dense_bytes = sparse ? share.dense_bytes : share.bytes;
  }
}

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
    const auto cut = [&](int server) { // the row where this server's share ends, nearest to its fraction of all bytes
      const auto target = static_cast<int64_t>(static_cast<double>(all) * (server + 1) / servers) - before;
      if (parameter.whole) {
        return server == servers - 1 || 2 * target >= parameter.bytes() ? parameter.rows() : 0;
      }
      return server == servers - 1 || row == 0 ? parameter.rows()
                                               : std::clamp((target + row / 2) / row, int64_t{0}, parameter.rows());
    };
    int64_t begin = 0;
    for (int server = 0; server < servers; ++server) {
      const int64_t end = std::max(begin, cut(server));
      if (end > begin) {
        shares[server].pieces.push_back({p, begin, end, 0});
      }
      begin = end;
    }
    before += parameter.bytes();
  }
  for (Share& share : shares) {
    place(share, parameters);
  }
  return shares;
}

RowLayout row_layout(const std::vector<ParameterInfo>& parameters, const Share& share,
                     const std::vector<int64_t>& counts) {
  RowLayout layout{{}, share.dense_bytes};
  size_t next = 0;
  for (size_t i = 0; i < share.pieces.size(); ++i) {
    const RowRange& piece = share.pieces[i];
    const ParameterInfo& parameter = parameters[piece.parameter];
    if (!parameter.sparse) {
      continue;
    }
    if (next == counts.size() || counts[next] < 0 || counts[next] > piece.end - piece.begin) {
      throw InputError("server", next == counts.size()
                                     ? concat("row counts for ", counts.size(), " sparse pieces; the share has more")
                                     : concat(counts[next], " rows of \"", parameter.name, "\"; this server has ",
                                              piece.end - piece.begin));
    }
    RowBlock& block = layout.blocks.emplace_back(RowBlock{i, counts[next++], layout.bytes, 0});
    block.values = block.numbers + padded(block.rows * kNumberBytes);
    layout.bytes = block.values + padded(block.rows * parameter.row_numel() * parameter.element_bytes());
  }
  if (next != counts.size()) {
    throw InputError("server", concat("row counts for ", counts.size(), " sparse pieces; the share has ", next));
  }
  return layout;
}

std::vector<int64_t> all_rows(const std::vector<ParameterInfo>& parameters, const Share& share) {
  std::vector<int64_t> counts;
  for (const RowRange& piece : share.pieces) {
    if (parameters[piece.parameter].sparse) {
      counts.push_back(piece.end - piece.begin);
    }
  }
  return counts;
}

ArrayLayout array_layout(const std::vector<ParameterInfo>& parameters, const Share& share) {
  ArrayLayout layout;
  for (const RowRange& piece : share.pieces) {
    layout.offsets.push_back(layout.bytes);
    const int64_t bytes = (piece.end - piece.begin) * parameters[piece.parameter].row_numel() * kFloatBytes;
    layout.bytes += padded(bytes);
  }
  return layout;
}

std::vector<ParameterInfo> read_parameters(const nlohmann::json& described) {
  std::vector<ParameterInfo> parameters;
  const auto fail = [](const std::string& what) {
    throw InputError("server", concat("a worker's description of its parameters is invalid: ", what),
                     "See docs/parameter_server.md, join.");
  };
  try {
    for (const nlohmann::json& one : described) {
      ParameterInfo& parameter = parameters.emplace_back();
      parameter.name = one.at("name").get<std::string>();
      parameter.shape = one.at("shape").get<std::vector<int64_t>>();
      parameter.type = one.value("dtype", "float32");
      parameter.weight_decay = one.value("weight_decay", -1.0);
      parameter.lr_factor = one.value("lr_factor", 1.0);
      parameter.sparse = one.value("sparse", false);
      parameter.whole = one.value("whole", false);
      if (parameter.type != "float32" && parameter.type != "bfloat16" && parameter.type != "float16") {
        fail(
            concat('"', parameter.name, "\" has the dtype \"", parameter.type, "\", not float32, bfloat16 or float16"));
      }
      if (parameter.sparse && parameter.shape.size() < 2) {
        fail(
            concat('"', parameter.name, "\" is sparse but has ", parameter.shape.size(), " dimensions, expected >= 2"));
      }
      int64_t numel = 1;
      for (const int64_t size : parameter.shape) {
        if (size < 0 || (size > 0 && numel > kMostElements / size)) {
          fail(concat('"', parameter.name, "\" has a dimension of ", size,
                      ": it is negative, or the parameter is too large"));
        }
        numel *= size;
      }
    }
  } catch (const nlohmann::json::exception& error) {
    fail(error.what());
  }
  if (parameters.empty()) {
    fail("the list is empty");
  }
  return parameters;
}

nlohmann::json describe(const std::vector<ParameterInfo>& parameters) {
  nlohmann::json described = nlohmann::json::array();
  for (const ParameterInfo& parameter : parameters) {
    nlohmann::json& one = described.emplace_back(
        nlohmann::json{{"name", parameter.name}, {"shape", parameter.shape}, {"dtype", parameter.type}});
    if (parameter.weight_decay >= 0) {
      one["weight_decay"] = parameter.weight_decay;
    }
    if (parameter.lr_factor != 1) {
      one["lr_factor"] = parameter.lr_factor;
    }
    if (parameter.sparse) {
      one["sparse"] = true;
    }
    if (parameter.whole) {
      one["whole"] = true;
    }
  }
  return described;
}

} // namespace trireme::parallel::server
