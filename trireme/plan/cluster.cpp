#include <trireme/plan/cluster.h>

#include <algorithm>
#include <cmath>

namespace trireme::plan {

double SpeedCurve::at(double size) const {
  if (points.size() == 1 || size <= points.front().size) {
    return points.front().flops;
  }
  const auto above = std::find_if(points.begin(), points.end(), [&](const Point& point) { return point.size > size; });
  if (above == points.end()) {
    return points.back().flops;
  }
  const Point& below = *(above - 1);
  const double share = std::log(size / below.size) / std::log(above->size / below.size);
  return below.flops + share * (above->flops - below.flops);
}

} // namespace trireme::plan
