#include <trireme/train/clock_offset.h>

namespace trireme::train {

std::vector<monitor::ClockSample> ask_clock_of_rank_0(const comm::Group& group) {
  constexpr int kQuestions = 8;
  const at::Tensor token = group.allocate(1, at::kLong);
  std::vector<monitor::ClockSample> samples;
  for (int rank = 1; rank < group.size(); ++rank) {
    for (int question = 0; question < kQuestions; ++question) {
      if (group.rank() == rank) {
        const int64_t sent = monitor::Tracer::now_ns();
        group.send(token, 0).wait();
        group.recv(token, 0).wait();
        samples.push_back({sent, token.cpu().const_data_ptr<int64_t>()[0], monitor::Tracer::now_ns()});
      } else if (group.rank() == 0) {
        group.recv(token, rank).wait();
        token.fill_(monitor::Tracer::now_ns());
        group.send(token, rank).wait();
      }
    }
  }
  return samples;
}

} // namespace trireme::train
