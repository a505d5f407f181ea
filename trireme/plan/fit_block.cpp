#include <trireme/plan/fit_block.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/plan/layer_cost.h>

#include <algorithm>

namespace trireme::plan {

void fit_block(const std::array<BlockTime, 3>& measured, const Job& job, Cluster& cluster) {
  Job plain = job;
  plain.base.activations = {};
  const auto planned = [&](const BlockTime& block) {
    const LayerCost cost = layer_costs(cluster, plain, {.tensor = block.tensor, .micro_batch = block.samples})
                               .at(2); // after two embeddings
    return cost.forward + cost.backward();
  };
  const std::array<double, 3> parts = {planned(measured[0]), planned(measured[1]), planned(measured[2])};
  const auto& [one, several, share] = measured;
  double factor = (several.seconds - one.seconds) / (parts[1] - parts[0]);
  double rest = one.seconds - factor * parts[0];
  if (factor <= 0 || rest < 0) {
    factor = several.seconds / parts[1];
    rest = 0;
  }
  if (share.tensor > 1) {
    const auto ranks = static_cast<double>(share.tensor);
    const double rest_of_share = std::clamp(share.seconds - factor * parts[2], rest / ranks, rest);
    cluster.weight_seconds = (rest - rest_of_share) / (1 - 1 / ranks) / 2;
  }
  cluster.layer_seconds = std::max(0.0, rest / 2 - cluster.weight_seconds);
  cluster.peak_flops /= factor;
  cluster.pass_bandwidth /= factor;
  for (SpeedCurve* curve : {&cluster.products, &cluster.attention}) {
    for (SpeedCurve::Point& point : curve->points) {
      point.flops /= factor;
    }
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    const BlockTime& block = measured[i];
    log::info("a block of ", block.samples, " samples",
              block.tensor > 1 ? concat(", a share of 1 / ", block.tensor, " of it,") : "", " takes ",
              block.seconds * 1e3, " ms; sum of its parts ", parts[i] * 1e3, " ms");
  }
}

} // namespace trireme::plan
