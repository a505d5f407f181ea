#include <trireme/plan/estimate/stage_layouts.h>

#include <trireme/plan/estimate/layouts.h>

namespace trireme::estimate {
namespace {

template <typename Map, typename Make>
const auto& found_or_made(Map& map, const typename Map::key_type& key, const Make& make) {
  const auto found = map.find(key);
  return found != map.end() ? found->second : map.emplace(key, make()).first->second;
}

} // namespace

const bucket::FlatLayout& StageLayouts::of(int64_t stage) const {
  return found_or_made(layouts_, {stage, std::nullopt}, [&] { return layout_of(run_, stage); });
}

const bucket::FlatLayout& StageLayouts::of(int64_t stage, bool whole) const {
  return found_or_made(layouts_, {stage, whole}, [&] { return layout_of(run_, stage, whole); });
}

const bucket::FlatLayout& StageLayouts::frozen(int64_t stage) const {
  return found_or_made(frozen_, stage, [&] { return frozen_layout_of(run_, stage); });
}

const GatherPlan& StageLayouts::gathers(int64_t stage) const {
  return found_or_made(gathers_, stage, [&] { return gather_plan(run_, stage, of(stage), frozen(stage)); });
}

} // namespace trireme::estimate
