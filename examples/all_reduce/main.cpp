// Three ranks add their numbers, on their GPUs or on the CPU: [1, 2, 3] + [10, 20, 30] + [4, 5, 6] = [15, 27, 39].
//   trireme launch -n 3 --all-output -- all_reduce
// TRIREME_BACKEND=shm or gloo (mpi, under mpirun) says what carries them; without it the fastest that suits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <trireme/comm/world.h>

#include <cstdio>
#include <exception>

int main() {
  try {
    auto world = trireme::comm::World::connect();
    if (world.size() != 3) {
      std::fprintf(stderr,
                   "all_reduce adds the numbers of three ranks, there are %d. Type: trireme launch -n 3 --all-output "
                   "-- all_reduce\n",
                   world.size());
      return 2;
    }
    constexpr float kNumbers[3][3] = {{1, 2, 3}, {10, 20, 30}, {4, 5, 6}};

    at::Tensor sum = at::tensor(at::ArrayRef<float>(kNumbers[world.rank()])).to(world.device());
    world.group().all_reduce(sum).wait();

    const at::Tensor host = sum.cpu();
    const float* value = host.const_data_ptr<float>();
    std::printf("rank %d of 3 over %s: [%g, %g, %g]\n", world.rank(), world.group().backend(sum.device()), value[0],
                value[1], value[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
