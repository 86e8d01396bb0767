// The sum of gradients over processes, each with a GPU of its own: run it under mpirun. With one
// process there is nothing to send, and the comparison shows that nothing changes.
//
//     mpirun -np 8 build/nvcc/all_reduce
//     mpirun -np 2 build/cuda/all_reduce --check        in the simulator
#define BENCH_WITHOUT_MAIN
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/comm/comm_start.h"
#include "llmc/cuda/comm.cuh"

// The values of each rank: its number, plus a part that is the same on all ranks.
static float value_of(int64_t rank, int64_t i) { return (float)(rank + 1) + (float)(i % 64) / 64; }

BENCH("all_reduce", dims("n"), shapes({{64 << 20}, {1 << 10}, {48 * 77}})) {
    if (!current->only_listed) gpu_comm_start();
    const int64_t P = comm.processes, n = shape[0] / (16 * P) * 16 * P;  // whole slices of whole Packs
    float *sums = buffer<float>(n), *mine = buffer<float>(n);
    for (int64_t i = 0; i < n; i++) mine[i] = value_of(comm.rank, i);
    float* d_values = device_buffer<float>(n);
    bytes(8.0 * n);  // each value read and written once; what is sent beyond that depends on the library
    output("sums", sums, n, 0), device_output("sums", d_values, n, sum_tolerance(P));
    setup([=] { put_back(d_values, mine, n); });
    expected([=] {
        for (int64_t i = 0; i < n; i++) {
            sums[i] = 0;
            for (int64_t r = 0; r < P; r++) sums[i] += value_of(r, i);
        }
    });
    auto host = [=] {
        std::vector<float> values(n);
        copy_from_device(values.data(), d_values, n * sizeof(float));
        comm_reduce_scatter_start(values.data(), n / P, 0), comm_wait("the sum");
        comm_all_gather_start(values.data(), n / P, 0), comm_wait("the collection");
        put_back(d_values, values.data(), n);
    };
    variant(
        "host",
        "to the host, summed between the hosts (comm.h), and back: over the bus twice, and through the host's memory",
        host);
    auto shipped = [=] {
        gpu_reduce_scatter(d_values, n / P, 0, stream);
        gpu_all_gather(d_values, n / P, 0, stream);
        gpu_comm_join(stream);
    };
    variant("shipped",
            "NCCL from GPU to GPU, on its own stream: each GPU sums one slice, then all gather the slices; each sends "
            "2 (P-1)/P of the bytes; the trainer overlaps the sums with the backward pass",
            shipped);
}

int main(int argc, char** argv) {
    comm_start(-1, -1, "mpi", "", "", 600);
    CommSession session;
    largest_of_processes = [](double mine) {
        const std::vector<double> all = comm_gather(mine, "what the others measured");
        return *std::max_element(all.begin(), all.end());
    };
    if (comm.rank > 0 && !freopen("/dev/null", "w", stdout)) runtime_failure("opening /dev/null: %s", strerror(errno));
    double sent = 0;
    trace.at_end = [&](const KernelWork& range) { sent += range.sent_bytes; };
    const int status = run_all(argc, argv);
    if (comm.processes > 1) printf("each process has sent %.0f bytes\n", sent);
    return status;
}
