/* collectives_mpi.c -- MPI_Allreduce, measured as `tessera bench allreduce` measures: send
 * buffers are written before every call, only calls are timed, of each round the slowest
 * rank counts, and the median of the rounds.  Built by bench/collectives with mpicc.
 *
 *   mpirun -n 2 collectives_mpi FIRST LAST FACTOR ROUNDS IN_PLACE     sizes in bytes
 *
 * prints "size median_us min_us wrong" per line.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024, WARMUP = 3, BATCH_BYTES = 1 << 16, MOST_BATCH = 200 };

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void write_block(float *x, const float *block, long n) {
  for (long i = 0; i < n; i += BLOCK) memcpy(x + i, block, (size_t)(n - i < BLOCK ? n - i : BLOCK) * sizeof *x);
}

static float value(long i, int rank, int round) {
  return (float)((((unsigned)i * 2654435761u >> 16) + (unsigned)rank * 3 + (unsigned)round) % 5);
}

static void fill_block(float *block, int rank, int round) {
  for (long i = 0; i < BLOCK; i++) block[i] = value(i, rank, round);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int me, n;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  if (argc != 6) {
    fprintf(stderr, "usage: collectives_mpi FIRST LAST FACTOR ROUNDS IN_PLACE\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long first = atol(argv[1]), last = atol(argv[2]), factor = atol(argv[3]);
  const int rounds = atoi(argv[4]), in_place = atoi(argv[5]);
  double *times = malloc((size_t)rounds * sizeof *times);
  for (long bytes = first; bytes <= last; bytes *= factor) {
    long count = bytes / (long)sizeof(float), wrong = 0;
    size_t room = ((size_t)bytes + 63) & ~(size_t)63;
    float *recv = aligned_alloc(64, room), *send = in_place ? recv : aligned_alloc(64, room), block[BLOCK];
    int batch = (int)(BATCH_BYTES / bytes);
    batch = batch < 1 ? 1 : batch > MOST_BATCH ? MOST_BATCH : batch;
    memset(recv, 0, room);
    for (int k = -WARMUP; k < rounds; k++) {
      double sum = 0;
      fill_block(block, me, k < 0 ? 0 : k);
      for (int i = 0; i < batch; i++) {
        write_block(send, block, count);
        if (batch == 1) MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(in_place ? MPI_IN_PLACE : send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        sum += MPI_Wtime() - start;
      }
      if (k >= 0) times[k] = sum / batch;
    }
    for (long i = 0; i < count; i++) {
      float want = 0;
      for (int r = 0; r < n; r++) want += value(i % BLOCK, r, rounds - 1);
      wrong += recv[i] != want;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    qsort(times, (size_t)rounds, sizeof *times, by_value);
    if (me == 0) printf("%ld %.3f %.3f %ld\n", bytes, times[rounds / 2] * 1e6, times[0] * 1e6, wrong);
    free(recv);
    if (!in_place) free(send);
  }
  free(times);
  MPI_Finalize();
  return 0;
}
