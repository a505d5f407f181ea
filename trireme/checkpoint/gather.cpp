#include <trireme/checkpoint/gather.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/exchange.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/shard_report.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

// Groups a lender's shards in the order of its tensors, because one lend() passes them in that order.
std::vector<TensorShard> in_order_of_lenders(std::vector<TensorShard> shards) {
  std::map<const Lender*, size_t> places;
  for (const TensorShard& shard : shards) {
    places.try_emplace(shard.lent.by.get(), places.size());
  }
  std::stable_sort(shards.begin(), shards.end(), [&](const TensorShard& a, const TensorShard& b) {
    const size_t place_a = places.at(a.lent.by.get()), place_b = places.at(b.lent.by.get());
    return place_a != place_b ? place_a < place_b : a.lent.i < b.lent.i;
  });
  return shards;
}

using Take = std::function<void(const TensorShard& shard, const at::Tensor& values)>;

// Calls take() for each shard in order, with its values contiguous on the CPU.
void for_each_values(const std::vector<TensorShard>& shards, const Take& take) {
  const auto row = [](const at::Tensor& values) { return values.detach().cpu().contiguous().view({-1}); };
  for (size_t next = 0; next < shards.size();) {
    const std::shared_ptr<Lender> by = shards[next].lent.by;
    if (!by) {
      take(shards[next], row(shards[next].data));
      ++next;
      continue;
    }
    const size_t first = next;
    by->lend([&](int64_t i, const at::Tensor& values) {
      for (; next < shards.size() && shards[next].lent.by == by && shards[next].lent.i == i; ++next) {
        take(shards[next], row(values.reshape({-1}).narrow(0, shards[next].lent.first, shards[next].data.numel())));
      }
    });
    if (next == first) {
      throw Error("checkpoint", concat("no values were lent for \"", shards[next].name, '"'));
    }
  }
}

void put(const at::Tensor& whole, const Region& region, const at::Tensor& values) {
  const at::Tensor row = whole.view({-1});
  for (const Run& run : runs(region, whole.sizes().vec(), 0, whole.numel())) {
    row.narrow(0, run.in_tensor, run.numel).copy_(values.narrow(0, run.in_shard, run.numel));
  }
}

Region region_of(const TensorShard& shard) {
  return {shard.box_offset, shard.box_size, shard.begin, shard.begin + shard.data.numel()};
}

// Rank 0's side. It receives one shard of each rank in turn, so that none waits long.
void receive(const comm::Group& group, const std::vector<json>& reports, const WholeTensors& whole) {
  size_t most = 0;
  for (const json& report : reports) {
    most = std::max(most, report.size());
  }
  for (size_t i = 0; i < most; ++i) {
    for (int rank = 1; rank < group.size(); ++rank) {
      const json& report = reports[static_cast<size_t>(rank)];
      if (i >= report.size()) {
        continue;
      }
      const json& shard = report[i];
      const Region region{shard.at("offset"), shard.at("size"), shard.at("range").at(0), shard.at("range").at(1)};
      if (region.end > region.begin) {
        const at::Tensor& tensor = whole.at(shard.at("name"));
        at::Tensor values = at::empty({region.end - region.begin}, tensor.options());
        group.recv(values, rank, 0, "values of the model").wait();
        put(tensor, region, values);
      }
    }
  }
}

// The other ranks' side. Returns the failure: rank 0 then receives zeros, and gets the error afterwards.
Problem send(const comm::Group& group, const std::vector<TensorShard>& shards) {
  size_t sent = 0;
  const auto send_one = [&](const TensorShard&, const at::Tensor& values) {
    if (values.numel() > 0) {
      group.send(values, 0, 0, "values of the model").wait();
    }
    ++sent;
  };
  try {
    for_each_values(shards, send_one);
    return {};
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    while (sent < shards.size()) {
      const at::Tensor& values = shards[sent].data;
      send_one(shards[sent], at::zeros({values.numel()}, values.scalar_type()));
    }
    return Problem::of(error);
  }
}

} // namespace

WholeTensors gather(const comm::Group& group, const std::vector<TensorShard>& given) {
  const std::vector<TensorShard> mine = in_order_of_lenders(given);
  json report = {{"shards", json::array()}};
  Problem problem;
  try {
    for (const TensorShard& shard : mine) {
      check_shard(shard);
      report["shards"].push_back(report_of(shard, ""));
    }
  } catch (const std::exception& error) {
    problem = Problem::of(error);
  }
  report["problem"] = to_json(problem);
  std::vector<json> shards;
  WholeTensors whole;
  const auto refuse = [](const std::vector<json>& reports) {
    if (const Problem all = joined(reports)) {
      all.raise();
    }
  };
  decide(group, report, [&](const std::vector<json>& reports) {
    refuse(reports);
    TensorEntries tensors;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      shards.push_back(reports[rank].at("shards"));
      for (const json& shard : shards.back()) {
        add_shard(tensors, shard, rank, rank);
      }
    }
    for (const auto& [name, tensor] : tensors) {
      check_coverage(tensor, "the shards of all ranks");
      whole[name] = at::empty(tensor.shape, scalar_type(tensor.dtype, "checkpoint"));
    }
    return json();
  });
  problem = {};
  if (group.rank() != 0) {
    problem = send(group, mine);
  } else {
    try {
      for_each_values(mine, [&](const TensorShard& shard, const at::Tensor& values) {
        put(whole.at(shard.name), region_of(shard), values);
      });
    } catch (const std::exception& error) {
      problem = Problem::of(error);
    }
    receive(group, shards, whole);
  }
  decide(group, {{"problem", to_json(problem)}}, [&](const std::vector<json>& reports) {
    refuse(reports);
    return json();
  });
  return whole;
}

} // namespace trireme::checkpoint
