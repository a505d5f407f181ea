#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/plan/cluster.h>

#include <nlohmann/json.hpp>

namespace trireme::plan {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

// Limits against slips, within which sums stay finite.
constexpr double kMostBytes = 1e18;
constexpr double kMostASecond = 1e21; // bytes or operations per second
constexpr double kMostSeconds = 1e6;
constexpr double kLeastFraction = 1e-6;

double within(const JsonNode& node, double least, double most, const char* unit) {
  const double value = node.as_real();
  if (!(value >= least && value <= most)) {
    node.fail(concat("must be from ", least, " to ", most, unit, ", found ", value));
  }
  return value;
}

int64_t byte_count(ObjectReader& reader, const std::string& key) {
  return static_cast<int64_t>(within(reader.require(key), 1, kMostBytes, " bytes"));
}

int64_t reserved_bytes(ObjectReader& reader) {
  const JsonNode* const node = reader.find("reserved_bytes");
  return node == nullptr ? 0 : static_cast<int64_t>(within(*node, 0, kMostBytes, " bytes"));
}

double a_second(ObjectReader& reader, const std::string& key) {
  return within(reader.require(key), 1, kMostASecond, " a second");
}

double seconds(ObjectReader& reader, const std::string& key) {
  const JsonNode* const node = reader.find(key);
  return node == nullptr ? 0 : within(*node, 0, kMostSeconds, " seconds");
}

int64_t count(ObjectReader& reader, const std::string& key, int64_t default_value) {
  const int64_t value = reader.get(key, default_value);
  if (value < 1 || value > kMostRanks) {
    reader.find(key)->fail(concat("must be from 1 to ", kMostRanks, ", found ", value));
  }
  return value;
}

// Reads a fraction of `peak`, or pairs of a size and a fraction.
SpeedCurve read_curve(const JsonNode& node, double peak) {
  SpeedCurve curve;
  const auto add = [&](double size, const JsonNode& fraction) {
    curve.points.push_back({size, within(fraction, kLeastFraction, 1, ", a fraction of \"flops\"") * peak});
  };
  if (node.kind() != JsonNode::Kind::array) {
    add(1, node);
    return curve;
  }
  for (const JsonNode& pair : node.elements()) {
    if (pair.elements().size() != 2) {
      pair.fail("must be [size, fraction]");
    }
    const double size = pair.elements()[0].as_real();
    if (!(size > 0) || (!curve.points.empty() && size <= curve.points.back().size)) {
      pair.elements()[0].fail(concat("sizes must be above 0 and grow, found ", size));
    }
    add(size, pair.elements()[1]);
  }
  if (curve.points.empty()) {
    node.fail("has no point", "Write one fraction, or pairs [size, fraction].");
  }
  return curve;
}

Level read_link(const std::string& name, int64_t ranks, ObjectReader& reader) {
  Level level{name, ranks, a_second(reader, "bandwidth"), seconds(reader, "latency")};
  reader.finish();
  return level;
}

void read_rank(const JsonNode& node, Cluster& out) {
  ObjectReader reader(node);
  out.on_host = reader.word("device", "card", {"card", "host"}) == "host";
  out.memory_bytes = byte_count(reader, "memory_bytes");
  out.reserved_bytes = reserved_bytes(reader);
  out.peak_flops = a_second(reader, "flops");
  out.products = read_curve(reader.require("achieved"), out.peak_flops);
  if (const JsonNode* attention = reader.find("attention_achieved")) {
    out.attention = read_curve(*attention, out.peak_flops);
  }
  out.memory_bandwidth = a_second(reader, "memory_bandwidth");
  out.pass_bandwidth =
      reader.find("pass_bandwidth") == nullptr ? out.memory_bandwidth : a_second(reader, "pass_bandwidth");
  out.layer_seconds = seconds(reader, "layer_seconds");
  out.weight_seconds = seconds(reader, "weight_seconds");
  reader.finish();
}

void read_host(const JsonNode& node, Cluster& out) {
  if (out.on_host) {
    node.fail("ranks compute on the host: \"rank\" describes its memory",
              "Remove it, or write \"device\": \"card\" in \"rank\".");
  }
  ObjectReader reader(node);
  out.host.memory_bytes = byte_count(reader, "memory_bytes");
  out.host.reserved_bytes = reserved_bytes(reader);
  out.host.memory_bandwidth = a_second(reader, "memory_bandwidth");
  out.host.link_bandwidth = a_second(reader, "link_bandwidth");
  reader.finish();
}

void read_disk(const JsonNode& node, Cluster& out) {
  if (!out.on_host && out.host.memory_bytes == 0) {
    node.fail("files of a GPU are read and stepped in host memory, which is not described", "Write \"host\" too.");
  }
  ObjectReader reader(node);
  out.disk.bytes = byte_count(reader, "bytes");
  out.disk.read_bandwidth = a_second(reader, "read_bandwidth");
  out.disk.write_bandwidth = a_second(reader, "write_bandwidth");
  reader.finish();
}

void read_links(const JsonNode& node, Cluster& out) {
  ObjectReader links(node);
  const auto link = [&](const char* key, int64_t ranks) {
    const JsonNode& found = links.require(key);
    ObjectReader reader(found);
    out.levels.push_back(read_link(key, ranks, reader));
  };
  if (out.ranks_per_host > 1) {
    link("inside_host", out.ranks_per_host);
  } else if (links.find("inside_host") != nullptr) {
    link("inside_host", 1);
    out.levels.clear(); // a single rank does not communicate
  }
  int64_t hosts = 1;
  if (const JsonNode* groups = links.find("host_groups")) {
    for (const JsonNode& group : groups->elements()) {
      ObjectReader reader(group);
      const std::string name = reader.get("name", std::string("host group"));
      reader.require("hosts");
      const int64_t size = count(reader, "hosts", 0);
      if (size % hosts != 0 || size <= hosts || out.hosts % size != 0) {
        reader.find("hosts")->fail(
            concat(size, " must be a multiple of ", hosts, ", larger, and divide the ", out.hosts, " hosts"));
      }
      hosts = size;
      out.levels.push_back(read_link(name, hosts * out.ranks_per_host, reader));
    }
  }
  if (hosts < out.hosts) {
    link("between_hosts", out.ranks());
  } else if (links.find("between_hosts") != nullptr) {
    ObjectReader reader(*links.find("between_hosts"));
    read_link("", 1, reader);
  }
  links.finish();
}

Cluster read(const JsonNode& root) {
  Cluster out;
  if (root.is_object() && root.find("model") != nullptr && root.find("rank") == nullptr) {
    root.fail("this is a run file, not the description of a cluster",
              "Pass a description such as examples/plan/cluster.json to --cluster, or write one with --calibrate.");
  }
  ObjectReader reader(root);
  out.name = reader.get("name", std::string("cluster"));
  out.hosts = count(reader, "hosts", 1);
  out.ranks_per_host = count(reader, "ranks_per_host", 1);
  if (out.ranks() > kMostRanks) {
    root.fail(concat(out.ranks(), " ranks are more than ", kMostRanks));
  }
  out.processors = count(reader, "processors", out.ranks_per_host);
  if (const JsonNode* overlap = reader.find("overlap")) {
    out.overlap = within(*overlap, 0, 1, ", a share");
  }
  out.hierarchical = reader.word("collectives", "hierarchical", {"hierarchical", "flat"}) == "hierarchical";
  if (const JsonNode* gathers = reader.find("all_reduce_gathers")) {
    out.all_reduce_gathers = within(*gathers, 0.1, 2, ", the cost of an all-reduce in all-gathers");
  }
  const JsonNode& rank = reader.require("rank");
  const JsonNode* const host = reader.find("host");
  const JsonNode* const disk = reader.find("disk");
  const JsonNode& links = reader.require("links");
  reader.finish(); // before a default that a misspelt key left in place is compared with anything
  read_rank(rank, out);
  if (host != nullptr) {
    read_host(*host, out);
  }
  if (disk != nullptr) {
    read_disk(*disk, out);
  }
  read_links(links, out);
  return out;
}

nlohmann::ordered_json curve_json(const SpeedCurve& curve, double peak) {
  if (curve.points.size() == 1) {
    return curve.points.front().flops / peak;
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const SpeedCurve::Point& point : curve.points) {
    out.push_back({point.size, point.flops / peak});
  }
  return out;
}

} // namespace

Cluster parse_cluster(const std::string& text, const std::string& source) {
  return read(JsonNode::parse(text, source));
}

Cluster read_cluster(const std::filesystem::path& file) {
  return read(JsonNode::parse_file(file));
}

std::string write_cluster(const Cluster& cluster) {
  using nlohmann::ordered_json;
  ordered_json rank = {{"device", cluster.on_host ? "host" : "card"},
                       {"memory_bytes", cluster.memory_bytes},
                       {"reserved_bytes", cluster.reserved_bytes},
                       {"flops", cluster.peak_flops},
                       {"achieved", curve_json(cluster.products, cluster.peak_flops)}};
  if (!cluster.attention.points.empty()) {
    rank["attention_achieved"] = curve_json(cluster.attention, cluster.peak_flops);
  }
  rank.update({{"memory_bandwidth", cluster.memory_bandwidth},
               {"pass_bandwidth", cluster.pass_bandwidth},
               {"layer_seconds", cluster.layer_seconds},
               {"weight_seconds", cluster.weight_seconds}});
  ordered_json links = ordered_json::object();
  ordered_json groups = ordered_json::array();
  for (const Level& level : cluster.levels) {
    const ordered_json link = {{"bandwidth", level.bandwidth}, {"latency", level.latency}};
    if (level.ranks == cluster.ranks_per_host) {
      links["inside_host"] = link;
    } else if (level.ranks == cluster.ranks()) {
      links["between_hosts"] = link;
    } else {
      groups.push_back({{"name", level.name}, {"hosts", level.ranks / cluster.ranks_per_host}});
      groups.back().update(link);
    }
  }
  if (!groups.empty()) {
    links["host_groups"] = groups;
  }
  ordered_json out{{"name", cluster.name},
                   {"hosts", cluster.hosts},
                   {"ranks_per_host", cluster.ranks_per_host},
                   {"processors", cluster.processors},
                   {"overlap", cluster.overlap},
                   {"collectives", cluster.hierarchical ? "hierarchical" : "flat"},
                   {"all_reduce_gathers", cluster.all_reduce_gathers},
                   {"rank", rank}};
  if (cluster.host.memory_bytes > 0) {
    out["host"] = {{"memory_bytes", cluster.host.memory_bytes},
                   {"reserved_bytes", cluster.host.reserved_bytes},
                   {"memory_bandwidth", cluster.host.memory_bandwidth},
                   {"link_bandwidth", cluster.host.link_bandwidth}};
  }
  if (cluster.disk.bytes > 0) {
    out["disk"] = {{"bytes", cluster.disk.bytes},
                   {"read_bandwidth", cluster.disk.read_bandwidth},
                   {"write_bandwidth", cluster.disk.write_bandwidth}};
  }
  out["links"] = links;
  return out.dump(2) + "\n";
}

} // namespace trireme::plan
