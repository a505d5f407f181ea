// The ranks add up [1,2,3], [10,20,30], [4,5,6], ...: with three of them everybody gets [15,27,39].
// Start it under trireme launch, torchrun --no-python, mpirun, or by hand with RANK and WORLD_SIZE.
#include <trireme/base/error.h>
#include <trireme/comm/world.h>

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

// With "--throw-on R" rank R then fails and the others wait for it in vain; with "--sleep-on R" it only does not come.
int main(int argc, char** argv) {
  using namespace trireme;
  try {
    comm::World world = comm::World::connect();
    const float start[3][3] = {{1, 2, 3}, {10, 20, 30}, {4, 5, 6}};
    at::Tensor mine = at::empty({3}, at::kFloat);
    for (int i = 0; i < 3; ++i) {
      mine.data_ptr<float>()[i] = start[world.rank() % 3][i];
    }
    world.group().all_reduce(mine, comm::ReduceOp::sum, "demo").wait();
    const float* sum = mine.data_ptr<float>();
    std::printf("rank %d of %d (local %d of %d): [%g, %g, %g]\n", world.rank(), world.size(), world.local_rank(),
                world.local_size(), sum[0], sum[1], sum[2]);
    if (argc == 3 && std::strcmp(argv[1], "--throw-on") == 0) {
      if (std::atoi(argv[2]) == world.rank()) {
        throw Error("demo", "fails on purpose.");
      }
      world.group().barrier("in vain").wait();
    }
    if (argc == 3 && std::strcmp(argv[1], "--sleep-on") == 0) {
      if (std::atoi(argv[2]) == world.rank()) {
        std::this_thread::sleep_for(std::chrono::seconds(60));
      }
      world.group().barrier("in vain").wait();
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
