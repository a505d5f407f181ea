#include <trireme/shards/data_parallel/mean_parameters.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <torch/utils.h>

#include <exception>

namespace trireme::parallel {

MeanParameters::MeanParameters(const std::vector<bucket::FlatParameters*>& buffers, const comm::Group& ranks) {
  const torch::NoGradGuard no_grad;
  for (bucket::FlatParameters* const buffer : buffers) {
    own_.emplace_back(buffer->flat_data(), buffer->flat_data().clone());
  }
  for (bucket::FlatParameters* const buffer : buffers) {
    for (int64_t b = 0; b < std::ssize(buffer->layout().buckets()); ++b) {
      at::Tensor data = buffer->bucket_data(b);
      at::Tensor sum = data.to(torch::kFloat32); // the data itself if it is fp32
      ranks.all_reduce(sum, comm::ReduceOp::sum, concat("parameters to evaluate, bucket ", b)).wait();
      sum.div_(ranks.size());
      if (!sum.is_same(data)) {
        data.copy_(sum);
      }
    }
  }
}

MeanParameters::~MeanParameters() {
  const torch::NoGradGuard no_grad;
  try {
    for (const auto& [parameters, copy] : own_) {
      at::Tensor(parameters).copy_(copy);
    }
  } catch (const std::exception& error) { // from a GPU
    log::error("the parameters could not be restored after an evaluation: ", error.what());
  }
}

} // namespace trireme::parallel
