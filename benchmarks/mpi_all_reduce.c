// Times MPI_Allreduce in place on fp32 buffers as `trireme bench comm` does. Started by benchmarks/run comm:
// mpicc -O2 mpi_all_reduce.c -o P && mpirun -np 2 P REPEATS BYTES... Rank 0 prints one JSON line a size: bytes, us
// (median), us_min.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Seconds of one call, the slowest rank's. */
static double measure(float* data, int count, int rounds) {
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = MPI_Wtime();
  for (int round = 0; round < rounds; ++round) {
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  seconds = MPI_Wtime() - seconds;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds / rounds;
}

int main(int argc, char** argv) {
  int rank = 0, ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int repeats = atoi(argv[1]);
  double* times = malloc(sizeof(double) * repeats);
  for (int i = 2; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    float* data = calloc(bytes, 1);
    measure(data, bytes / 4, 2);
    const double once = measure(data, bytes / 4, 3);
    int rounds = once > 0 ? (int)(2e-3 / once) : 2000;
    rounds = rounds < 1 ? 1 : rounds > 2000 ? 2000 : rounds;
    MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      times[repeat] = measure(data, bytes / 4, rounds);
    }
    qsort(times, repeats, sizeof(double), ascending);
    if (rank == 0) {
      printf("{\"ranks\": %d, \"bytes\": %ld, \"us\": %.3f, \"us_min\": %.3f}\n", ranks, bytes,
             times[repeats / 2] * 1e6, times[0] * 1e6);
      fflush(stdout);
    }
    free(data);
  }
  MPI_Finalize();
  return 0;
}
