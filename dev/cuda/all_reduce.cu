// The sum of gradients over processes, each with a GPU of its own: run it under mpirun. With one
// process there is nothing to send, and what is compared is that nothing changes.
//
//     mpirun -np 8 build/nvcc/all_reduce
//     mpirun -np 2 build/cuda/all_reduce --check        in the simulator
#define BENCH_WITHOUT_MAIN
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cuda/comm.cuh"

// Every rank's values: its number, plus what is the same on all.
static float value_of(int64_t rank, int64_t i) { return (float)(rank + 1) + (float)(i % 64) / 64; }

BENCH("all_reduce", dims("n"), shapes({{64 << 20}, {1 << 10}, {48 * 77}})) {
    if (!current->only_listed) gpu_comm_start();
    const int64_t P = comm.processes, n = shape[0] / (16 * P) * 16 * P;  // whole slices of whole Packs
    float *sums = buffer<float>(n), *mine = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) mine[i] = value_of(comm.rank, i);
    float* d_values = device_buffer<float>(n);
    bytes(8.0 * n), requested_by_all(8.0 * n);  // read and written once, whatever travels between the GPUs
    output("sums", sums, n, 0), device_output("sums", d_values, n, sum_tolerance(P));
    setup([=] { put_back(d_values, mine, n); });
    expected([=] {
        for (int64_t i = 0; i < n; i++) {
            sums[i] = 0;
            for (int64_t r = 0; r < P; r++) sums[i] += value_of(r, i);
        }
    });
    variant("host",
            "to the host, there to all others (comm.h), and back: over the bus twice, and through the host's memory",
            [=] {
                std::vector<float> values(n);
                copy_from_device(values.data(), d_values, n * sizeof(float));
                comm_reduce_scatter_start(values.data(), n / P, 0), comm_wait("the sum");
                comm_all_gather_start(values.data(), n / P, 0), comm_wait("the collection");
                put_back(d_values, values.data(), n);
            });
    variant("shipped",
            "NCCL from GPU to GPU, on a stream of its own: each sums a slice, then all collect the slices, 2 (P-1)/P "
            "of the bytes; the trainer lets the first half travel behind the backward pass",
            [=] {
                gpu_reduce_scatter(d_values, n / P, 0, stream);
                gpu_all_gather(d_values, n / P, 0, stream);
                gpu_comm_join(stream);
            });
}

int main(int argc, char** argv) {
    comm_start(-1, -1, "mpi", "", "", 600);
    CommSession session;
    largest_of_processes = [](double mine) {
        const std::vector<double> all = comm_gather(mine, "what the others measured");
        return *std::max_element(all.begin(), all.end());
    };
    if (comm.rank > 0 && !freopen("/dev/null", "w", stdout)) runtime_failure("opening /dev/null: %s", strerror(errno));
    return run_all(argc, argv);
}
