// Kernels with one mistake each, which the simulator must find; a few have none.
// dev/test/test_sim.cpp runs all of them.
//
//     make build/cusim_seeded_bugs && build/cusim_seeded_bugs off_by_one
//
// Exit status 0: the result is right. 3: it is wrong (poison, another order). 1: the simulator
// stopped the kernel and said why.
#include <nccl.h>
#include <cmath>
#include <functional>
#include <map>
#include "llmc/cuda/mma.cuh"
#include "llmc/cuda/step_graph.cuh"

constexpr int N = 64;
static cudaStream_t stream;

template <class T>
static T* device_array(int64_t n, bool cleared = true) {
    T* p;
    check_cuda(cudaMalloc(&p, n * sizeof(T)), "allocating");
    if (cleared) check_cuda(cudaMemsetAsync(p, 0, n * sizeof(T), stream), "clearing");
    return p;
}
static int verdict(const float* p, std::function<float(int)> expected, int n = N) {
    std::vector<float> values(n);
    copy_to_host(values.data(), p, n * sizeof(float), stream);
    bool good = true;
    for (int i = 0; i < n; i++) good &= values[i] == expected(i);
    printf("result %s, first value %g\n", good ? "right" : "wrong", values[0]);
    return good ? 0 : 3;
}

// out[i] = i + distance modulo N: the value of another thread, through shared memory.
template <bool barrier>
__global__ void exchange_kernel(float* out, int distance) {
    __shared__ float values[N];
    values[threadIdx.x] = (float)threadIdx.x;
    if (barrier) __syncthreads();
    out[threadIdx.x] = values[(threadIdx.x + distance) % N];
}
template <bool barrier>
static int exchange(int distance) {
    float* out = device_array<float>(N);
    launch("exchange", exchange_kernel<barrier>, 1, N, 0, stream, out, distance);
    return verdict(out, [&](int i) { return (float)((i + distance) % N); });
}

__global__ void off_by_one_kernel(float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = 1;
}
__global__ void read_off_by_one_kernel(float* out, const float* inp, int n) {
    const int i = threadIdx.x;
    float sum = 0;
    for (int k = i; k <= n; k++) sum += inp[k];
    out[i] = sum * 0;
}
__global__ void shared_off_by_one_kernel(float* out) {
    __shared__ float values[N];
    values[threadIdx.x + 1] = 1;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}
__global__ void block_race_kernel(float* out) { out[0] = (float)blockIdx.x; }
// right only if blocks run one after the other
__global__ void block_order_kernel(float* out) { out[threadIdx.x] += (float)(blockIdx.x + 1); }
__global__ void copy_kernel(float* out, const float* inp) { out[threadIdx.x] = inp[threadIdx.x]; }
__global__ void divergent_barrier_kernel(float* out) {
    if (threadIdx.x < 16) __syncthreads();
    else __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void early_exit_kernel(float* out) {  // correct: a barrier does not wait for threads that returned
    out[threadIdx.x] = 1;
    if (threadIdx.x >= 40) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void barrier_in_half_a_warp_kernel(float* out) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1.0f, 1);
}
__global__ void shuffle_mask_kernel(float* out) {
    out[threadIdx.x] = __shfl_xor_sync(threadIdx.x < 8 ? 0xFFFFFFFFu : 0xFFFFFF00u, 1.0f, 1);
}
__global__ void shuffle_not_in_mask_kernel(float* out) { out[threadIdx.x] = __shfl_xor_sync(0x0000FFFFu, 1.0f, 1); }
template <bool wait>
__global__ void async_copy_kernel(float* out, const float* inp) {
    __shared__ float4 values[N];
    copy_async(&values[threadIdx.x], inp + 4 * threadIdx.x, true);
    copy_async_commit();
    if (wait) copy_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x].x;
}
__global__ void misaligned_kernel(float* out, const float* inp) { out[threadIdx.x] = load_pack(inp + 1)[0]; }
__global__ void hinted_store_kernel(float* out, const float* inp) {
    __shared__ __align__(16) float values[4 * N];
    store_floats(values + 4 * threadIdx.x, load_floats(inp));
    out[threadIdx.x] = values[4 * threadIdx.x];
}
__global__ void fault_kernel(float* out) { out[threadIdx.x * 4096] = 1; }
__global__ void null_kernel(float* out) {
    if (threadIdx.x == 5) *(volatile float*)nullptr = 1;
    out[threadIdx.x] = 1;
}
__global__ void big_shared_kernel(float* out) {
    __shared__ float values[13000];
    values[threadIdx.x] = 1;
    out[threadIdx.x] = values[threadIdx.x];
}
__device__ float deep(int n, volatile float* p) {
    volatile float local[1024];
    local[n % 1024] = p[0];
    return n == 0 ? local[0] : deep(n - 1, local) + local[n % 1024];
}
__global__ void stack_overflow_kernel(float* out) { out[threadIdx.x] = deep(1000, out); }

template <class... Args>
static int run(const char* name, void (*kernel)(Args...), dim3 grid, dim3 block, Args... args) {
    launch(name, kernel, grid, block, 0, stream, args...);
    wait_for_stream(stream, "waiting");
    return 0;
}

// Two streams, the second reading what the first writes.
static int two_streams(bool waits) {
    cudaStream_t other;
    cudaEvent_t written;
    check_cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "making a stream");
    check_cuda(cudaEventCreate(&written), "making an event");
    float *middle = device_array<float>(N, false), *out = device_array<float>(N);
    wait_for_stream(stream, "waiting");
    launch("first", exchange_kernel<true>, 1, N, 0, other, middle, 0);
    check_cuda(cudaEventRecord(written, other), "recording");
    if (waits) check_cuda(cudaStreamWaitEvent(stream, written, 0), "waiting");
    launch("second", copy_kernel, 1, N, 0, stream, out, (const float*)middle);
    return verdict(out, [](int i) { return (float)i; });
}

// Copies from ordinary memory of the host, and a kernel that reads them. cudaMemcpy may return
// before its data has arrived.
static int pageable_copy(bool in_stream) {
    const std::vector<float> ones(N, 1.0f);
    float *inp = device_array<float>(N), *out = device_array<float>(N);
    if (in_stream) copy_to_device(inp, ones.data(), N * sizeof(float), stream);
    else {
        wait_for_stream(stream, "waiting");
        check_cuda(cudaMemcpy(inp, ones.data(), N * sizeof(float), cudaMemcpyHostToDevice), "copying");
    }
    launch("copy", copy_kernel, 1, N, 0, stream, out, (const float*)inp);
    return verdict(out, [](int) { return 1.0f; });
}
// cudaMemcpy does not wait for a stream that is non-blocking.
static int copy_without_wait() {
    float value = 0;
    float* out = device_array<float>(N, false);
    launch("exchange", exchange_kernel<true>, 1, N, 0, stream, out, 1);
    check_cuda(cudaMemcpy(&value, out, sizeof(float), cudaMemcpyDeviceToHost), "copying");
    return value == 1 ? 0 : 3;
}
// Asks whether a stream is done. That it is not stays in cudaGetLastError() unless it is taken out.
static int asks_for_stream(bool forgets_answer) {
    float* out = device_array<float>(N);
    if (forgets_answer) (void)cudaStreamQuery(stream);
    else wait_for_stream(stream, "waiting");
    launch("exchange", exchange_kernel<true>, 1, N, 0, stream, out, 0);
    return verdict(out, [](int i) { return (float)i; });
}

// A graph of a kernel that adds `value`, an argument, times `factor`, which is in memory. Launched
// three times, the last time with another value and, unless that is forgotten, captured anew with a
// second kernel. Nothing is waited for in between.
enum GraphMistake { NO_MISTAKE, STALE_VALUE, WAITS, RECORDS };
__global__ void add_product_kernel(float* out, const float* factor, float value) {
    out[threadIdx.x] += *factor * value;
}
static int sums_by_graph(GraphMistake mistake) {
    float *out = device_array<float>(N), *factor = device_array<float>(1), expected = 0;
    cudaEvent_t event;
    check_cuda(cudaEventCreate(&event), "making an event");
    StepGraph graph;
    for (int round = 1; round <= 3; round++) {
        const float in_memory = (float)round, value = round < 3 ? 1.0f : 5.0f;
        check_cuda(cudaMemcpyAsync(factor, &in_memory, sizeof(float), cudaMemcpyHostToDevice, stream), "copying");
        const int kernels = round < 3 ? 1 : 2;
        const auto enqueue = [&] {
            for (int i = 0; i < kernels; i++)
                launch("add_product", add_product_kernel, 1, N, 0, stream, out, (const float*)factor, value);
            if (mistake == WAITS) wait_for_stream(stream, "waiting");
            if (mistake == RECORDS) check_cuda(cudaEventRecord(event, stream), "recording");
        };
        if (round == 1 || (round == 3 && mistake != STALE_VALUE)) graph.capture(stream, enqueue);
        check_cuda(cudaGraphLaunch(graph.launches, stream), "launching");
        expected += kernels * in_memory * value;
    }
    graph.free();
    return verdict(out, [&](int) { return expected; });
}

// A communicator of `processes`, of which this is the first, and a gather in it.
enum NcclMistake { NONE, LOW_PRIORITY, TWO_CALLS, OPEN_GROUP, NO_DESTROY, EARLY_EXIT };
static void check_nccl(ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) runtime_failure("NCCL: %s", ncclGetLastError(nullptr));
}
static int gather_alone(NcclMistake mistake, int processes = 1) {
    cudaStream_t other;
    ncclComm_t nccl = nullptr;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int lowest, highest;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities");
    check_cuda(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, mistake == LOW_PRIORITY ? lowest : highest),
               "making a stream");
    ncclResult_t state = ncclSuccess;
    const auto settle = [&] {
        for (state = ncclInProgress; state == ncclInProgress;) ncclCommGetAsyncError(nccl, &state);
    };
    ncclGetUniqueId(&id);
    ncclCommInitRankConfig(&nccl, processes, id, 0, &config);
    if (mistake == EARLY_EXIT) exit(1);
    settle();
    float *inp = device_array<float>(N), *out = device_array<float>(N, false);
    wait_for_stream(stream, "waiting");
    const auto gather = [&] { return ncclAllGather(inp, out, N, ncclFloat32, nccl, other); };
    if (mistake == TWO_CALLS) check_nccl(gather());
    check_nccl(ncclGroupStart());
    for (int i = 0; i < 2; i++) check_nccl(gather());
    if (mistake == OPEN_GROUP) check_nccl(ncclCommGetAsyncError(nccl, &state));
    check_nccl(ncclGroupEnd());
    settle();
    wait_for_stream(other, "waiting");
    if (mistake == NO_DESTROY) return 0;
    ncclCommFinalize(nccl);
    settle();
    ncclCommDestroy(nccl);
    return verdict(out, [](int) { return 0.0f; });
}

// Every case by its name. out (N) and inp (4 N + 4) are zeros on the device.
static std::map<std::string, std::function<int()>> all_cases(float* out, const float* inp) {
    auto ones = [](int) { return 1.0f; };
    auto zeros = [](int) { return 0.0f; };
    auto last_block = [](int) { return 15.0f; };
    return {
        {"good", [] { return exchange<true>(1); }},
        {"missing_barrier", [] { return exchange<false>(1); }},  // reads poison
        {"missing_barrier_hidden",
         [] { return exchange<false>(N - 1); }},  // only thread 0 reads a value that is not there yet
        {"off_by_one", [=] { return run("off_by_one", off_by_one_kernel, 2, N, out, N); }},
        {"read_off_by_one",
         [=] {
             run("read_off_by_one", read_off_by_one_kernel, 1, N, out, (const float*)device_array<float>(N), N);
             return verdict(out, zeros);
         }},
        {"shared_off_by_one", [=] { return run("shared_off_by_one", shared_off_by_one_kernel, 1, N, out); }},
        {"block_race",
         [=] {
             run("block_race", block_race_kernel, 16, 1, out);
             return verdict(out, last_block, 1);
         }},
        {"block_order",
         [=] {
             run("block_order", block_order_kernel, 16, N, out);
             return verdict(out, [](int) { return 136.0f; });
         }},
        {"uninitialised",
         [=] {
             run("copy", copy_kernel, 1, N, out, (const float*)device_array<float>(N, false));
             return verdict(out, zeros);
         }},
        {"divergent_barrier", [=] { return run("divergent_barrier", divergent_barrier_kernel, 1, N, out); }},
        {"early_exit",
         [=] {
             run("early_exit", early_exit_kernel, 1, N, out);
             return verdict(out, ones);
         }},
        {"barrier_in_half_a_warp",
         [=] { return run("barrier_in_half_a_warp", barrier_in_half_a_warp_kernel, 1, N, out); }},
        {"shuffle_masks_differ", [=] { return run("shuffle_mask", shuffle_mask_kernel, 1, 32, out); }},
        {"shuffle_not_in_mask", [=] { return run("shuffle_not_in_mask", shuffle_not_in_mask_kernel, 1, 32, out); }},
        {"async_copy",
         [=] {
             run("async_copy", async_copy_kernel<true>, 1, N, out, inp);
             return verdict(out, zeros);
         }},
        {"missing_async_wait",
         [=] {
             run("async_copy", async_copy_kernel<false>, 1, N, out, inp);
             return verdict(out, zeros);
         }},
        {"stream_wait", [] { return two_streams(true); }},
        {"missing_stream_wait", [] { return two_streams(false); }},
        {"stream_copy", [] { return pageable_copy(true); }},
        {"pageable_copy", [] { return pageable_copy(false); }},
        {"copy_without_wait", [] { return copy_without_wait(); }},
        {"good_query", [] { return asks_for_stream(false); }},
        {"forgotten_query", [] { return asks_for_stream(true); }},
        {"graph", [] { return sums_by_graph(NO_MISTAKE); }},
        {"captured_value", [] { return sums_by_graph(STALE_VALUE); }},
        {"wait_in_capture", [] { return sums_by_graph(WAITS); }},
        {"event_in_capture", [] { return sums_by_graph(RECORDS); }},
        {"nccl", [] { return gather_alone(NONE); }},
        {"nccl_low_priority", [] { return gather_alone(LOW_PRIORITY); }},
        {"nccl_two_calls", [] { return gather_alone(TWO_CALLS); }},
        {"nccl_open_group", [] { return gather_alone(OPEN_GROUP); }},
        {"nccl_no_destroy", [] { return gather_alone(NO_DESTROY); }},
        {"nccl_early_exit", [] { return gather_alone(EARLY_EXIT, 2); }},
        {"misaligned", [=] { return run("misaligned", misaligned_kernel, 1, N, out, inp); }},
        {"hinted_store", [=] { return run("hinted_store", hinted_store_kernel, 1, N, out, inp); }},
        {"fault", [=] { return run("fault", fault_kernel, 1, N, out); }},
        {"null", [=] { return run("null", null_kernel, 1, N, out); }},
        {"host_access", [=] { return (int)out[3]; }},
        {"too_many_threads", [=] { return run("copy", copy_kernel, 1, 1025, out, inp); }},
        {"big_shared", [=] { return run("big_shared", big_shared_kernel, 1, N, out); }},
        {"big_dynamic_shared", [=] { return launch("copy", copy_kernel, 1, N, 49 << 10, stream, out, inp), 0; }},
        {"stack_overflow", [=] { return run("stack_overflow", stack_overflow_kernel, 1, N, out); }},
    };
}

int main(int argc, char** argv) {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    float *out = device_array<float>(N), *inp = device_array<float>(4 * N + 4);
    const auto cases = all_cases(out, inp);
    const auto found = argc == 2 ? cases.find(argv[1]) : cases.end();
    if (found == cases.end()) {
        for (auto& [name, run] : cases) printf("%s\n", name.c_str());
        return argc == 1 ? 0 : 2;
    }
    return found->second();
}
