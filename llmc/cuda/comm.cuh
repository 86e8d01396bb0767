// The collectives of comm.h on GPUs, by NCCL. They have a stream of their own beside the one that
// computes, so that the gradients of one layer travel while those of the next are computed. Events
// order the two streams; within a step the host waits for neither. Without NCCL only one process is
// possible.
//
//     stream         | layer l backward | layer l-1 backward       | ...            | join | update
//     gpu_comm.stream                   | reduce-scatter, bucket l | bucket l-1     |
//
// Weights that other processes have updated (ZeRO-1) arrive while the next forward pass computes:
//
//     stream          update |                           | layer 0   | layer 1   | layer 2 ...
//     gpu_comm.stream        | all-gather, outside layers | layer 0 | layer 1 | layer 2 ...
//
// The same run has the same bits on the same GPUs in the same machines: NCCL adds along rings,
// which follow how the GPUs are connected. Switches of NVLink can add, too (NVLS), but in another
// order from call to call (github.com/NVIDIA/nccl/issues/1497), so they do not here.
// NCCL_NVLS_ENABLE=1 in the environment lets them; with NCCL_ALGO set, nothing is changed.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>
#include "llmc/comm/tcp.h"
#include "llmc/cuda/common.cuh"
#ifdef USE_NCCL
#include <nccl.h>
#endif

struct GpuComm {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    std::vector<cudaEvent_t> weights_there;        // by bucket: what other processes have updated has arrived
    bool grouping = false;                         // between ncclGroupStart and ncclGroupEnd
    std::vector<std::function<void()>> postponed;  // sums that wait for others (--bucket-mb), of so many bytes
    int64_t postponed_bytes = 0;
#ifdef USE_NCCL
    ncclComm_t nccl = nullptr;
#endif
};
inline GpuComm gpu_comm;

#ifdef USE_NCCL
// -------------------------------------------------------------------------------------------------
// NCCL, without waiting for ever: its functions begin something and return; what may depend on the
// other processes is waited for here, as long as --comm-timeout permits.

constexpr double ABORT_S = 5, GRACE_S = 3;

inline void check_nccl(ncclResult_t result, const char* what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    runtime_failure("NCCL, %s: %s (%s); NCCL_DEBUG=INFO shows more", what, ncclGetErrorString(result),
                    ncclGetLastError(gpu_comm.nccl));
}
// Whether NCCL has done what its last call began.
inline bool nccl_is_ready(const char* what) {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(gpu_comm.nccl, &state), what);
    check_nccl(state, what);
    return state == ncclSuccess;
}
inline void finish_call(ncclResult_t result, const char* what) {
    check_nccl(result, what);
    if (gpu_comm.grouping) return;  // begins with the end of the group
    wait_until([&] { return nccl_is_ready(what); }, what);
}

// Ends the run, while the host waits, if NCCL has failed, or if a process has ended while it was
// needed. NCCL notices the latter over a network, not within a machine. A process that has ended
// well has done its part before, so its collectives get some time to end here, too.
inline void look_at_processes(const char* what) {
    static double ended_at = 0;
    if (nccl_is_ready(what) && is_done(gpu_comm.stream, what)) return;
    const int64_t ended = tcp_ended_rank();
    if (ended >= 0 && ended_at == 0) ended_at = now_seconds();
    if (ended >= 0 && now_seconds() - ended_at > GRACE_S)
        runtime_failure("rank %d has ended: this one waited for it in %s", ended, what);
}

// Ends a process that has failed. exit() would wait for NCCL's kernels, and they for the other
// processes. So the collectives are aborted first, in a thread, for that may hang, too
// (github.com/NVIDIA/nccl/issues/549).
inline void end_without_collectives(int status) {
    static std::atomic<bool> aborted{false};
    std::thread([] { aborted = ncclCommAbort(gpu_comm.nccl) == ncclSuccess; }).detach();
    for (const double begin = now_seconds(); !aborted && now_seconds() - begin < ABORT_S;) usleep(1000);
    fflush(nullptr);
    _exit(status);
}

// Exit 1 if two processes have the same GPU, which NCCL does not accept.
inline void check_gpus_differ() {
    int number = 0;
    cudaDeviceProp gpu;
    check_cuda(cudaGetDevice(&number), "asking for the GPU");
    check_cuda(cudaGetDeviceProperties(&gpu, number), "asking for the GPU's properties");
    const auto all = comm_gather(gpu.uuid, "the GPUs of all processes");
    for (int64_t r = 0; r < comm.processes; r++)
        if (r != comm.rank && memcmp(&all[r], &gpu.uuid, sizeof(gpu.uuid)) == 0)
            runtime_failure(
                "ranks %d and %d have the same GPU, number %d (%s); a machine can have as many processes as GPUs, "
                "and CUDA_VISIBLE_DEVICES must not give two of them the same one",
                std::min(r, comm.rank), std::max(r, comm.rank), number, gpu.name);
}

template <class T>
constexpr ncclDataType_t nccl_type() {
    return sizeof(T) == 8 ? ncclFloat64 : sizeof(T) == 4 ? ncclFloat32 : is_fp16<T>() ? ncclFloat16 : ncclBfloat16;
}

// Ends NCCL where nothing has failed: all processes come here.
inline void gpu_comm_end() {
    wait_for_stream(gpu_comm.stream, "the last collectives");
    finish_call(ncclCommFinalize(gpu_comm.nccl), "the end of NCCL");
    check_nccl(ncclCommDestroy(gpu_comm.nccl), "ending");
    end_after_failure = nullptr, host_wait = {}, while_polling = nullptr;
    gpu_comm = {};
}

// Rank 0 creates NCCL's id, comm.h sends it to the others. The stream has the highest priority:
// otherwise the few blocks of a collective would wait until the many blocks of a kernel are done.
inline void connect_gpus() {
    int lowest = 0, highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities");
    check_cuda(cudaStreamCreateWithPriority(&gpu_comm.stream, cudaStreamNonBlocking, highest), "making a stream");
    check_cuda(cudaEventCreateWithFlags(&gpu_comm.event, cudaEventDisableTiming), "making an event");
    check_gpus_differ();
    ncclUniqueId id{};
    if (comm.rank == 0) check_nccl(ncclGetUniqueId(&id), "making an id");
    id = comm_gather(id, "NCCL's id")[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // All connect at once, so that the first step finds the memory that is left.
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    if (!getenv("NCCL_ALGO")) setenv("NCCL_NVLS_ENABLE", "0", 0);
    check_nccl(ncclCommInitRankConfig(&gpu_comm.nccl, (int)comm.processes, id, (int)comm.rank, &config), "starting");
    host_wait = {(double)comm.timeout_s, look_at_processes};
    end_after_failure = end_without_collectives, comm.at_end = gpu_comm_end;
    finish_call(ncclInProgress, "the start of NCCL");
#ifdef CUSIM
    while_polling = [] { (void)is_done(gpu_comm.stream, "the collectives of the GPUs"); };
#endif
}
#endif

// Connects the processes' GPUs, if there are several.
inline void gpu_comm_start() {
    if (comm.processes == 1 || gpu_comm.stream) return;
#ifdef USE_NCCL
    connect_gpus();
#else
    usage_error("--num-processes %d: this program was built without NCCL; 1 is accepted", comm.processes);
#endif
}

// Work enqueued in `second` from now on starts after the work enqueued in `first` so far.
inline void order_streams(cudaStream_t first, cudaStream_t second) {
    check_cuda(cudaEventRecord(gpu_comm.event, first), "ordering streams");
    check_cuda(cudaStreamWaitEvent(second, gpu_comm.event, 0), "ordering streams");
}
// An event that is reached when the work enqueued in `stream` so far is done.
inline void record_event(cudaEvent_t& event, cudaStream_t stream) {
    if (!event) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    check_cuda(cudaEventRecord(event, stream), "ordering streams");
}
// Work enqueued in `stream` from now on starts after an event, if it was ever recorded.
inline void wait_in_stream(cudaEvent_t event, cudaStream_t stream) {
    if (event) check_cuda(cudaStreamWaitEvent(stream, event, 0), "ordering streams");
}
// The host waits for all collectives enqueued so far. To be called before much work is enqueued
// behind them: the driver keeps about a thousand launches of a stream, and if another process
// hangs, the launch after those would wait for ever.
inline void gpu_comm_wait(const char* what) {
    if (comm.processes > 1) wait_for_stream(gpu_comm.stream, what);
}

// A slice on the track of the collectives, while a step is traced; those of a group have one.
struct CollectiveRange {
    std::optional<StreamRange> range;
    explicit CollectiveRange(const KernelWork& work) {
        if (!gpu_comm.grouping) range.emplace(work, gpu_comm.stream);
    }
};

#ifdef USE_NCCL
// What `enqueue` starts becomes one call of NCCL.
template <class Enqueue>
void nccl_group(const char* what, Enqueue enqueue) {
    check_nccl(ncclGroupStart(), what);
    gpu_comm.grouping = true;
    enqueue();
    gpu_comm.grouping = false;
    finish_call(ncclGroupEnd(), what);
}
// A collective that begins when `stream` has computed what it sends: slices of so many bytes.
// enqueue() enqueues it in gpu_comm.stream. `bucket` is for the trace; -1: not a bucket.
template <class Enqueue>
void enqueue_collective(const char* name, int64_t bucket, int64_t slice_bytes, cudaStream_t stream, Enqueue enqueue) {
    if (comm.processes == 1) return;
    const KernelWork sent = work::collective(name, bucket, (comm.processes - 1) * slice_bytes);
    const Range range(sent);
    order_streams(stream, gpu_comm.stream);
    const CollectiveRange in_stream(sent);
    enqueue();
}

// The collectives on buckets of comm.h, on data (processes * n_elems). mine: where this process's
// slice goes, or comes from; null: where it lies in data.
template <class T>
void gpu_reduce_scatter(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream, T* mine = nullptr) {
    enqueue_collective("reduce_scatter", bucket, n_elems * sizeof(T), stream, [&] {
        finish_call(ncclReduceScatter(data, mine ? mine : data + comm.rank * n_elems, n_elems, nccl_type<T>(), ncclSum,
                                      gpu_comm.nccl, gpu_comm.stream),
                    "a reduce-scatter");
    });
}
template <class T>
void gpu_all_gather(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream, const T* mine = nullptr) {
    enqueue_collective("all_gather", bucket, n_elems * sizeof(T), stream, [&] {
        finish_call(ncclAllGather(mine ? mine : data + comm.rank * n_elems, data, n_elems, nccl_type<T>(),
                                  gpu_comm.nccl, gpu_comm.stream),
                    "an all-gather");
    });
}

// Slice r of `from` (processes * n_elems) goes to rank r, where it becomes slice `rank` of `to`.
inline void gpu_all_to_all(float* to, const float* from, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    const auto exchange = [&] {
        for (int r = 0; r < (int)comm.processes; r++) {
            check_nccl(ncclSend(from + r * n_elems, n_elems, ncclFloat32, r, gpu_comm.nccl, gpu_comm.stream), "a send");
            check_nccl(ncclRecv(to + r * n_elems, n_elems, ncclFloat32, r, gpu_comm.nccl, gpu_comm.stream),
                       "a receive");
        }
    };
    enqueue_collective("all_to_all", bucket, n_elems * sizeof(float), stream,
                       [&] { nccl_group("an exchange", exchange); });
}

// The collectives that `enqueue` starts become one piece of work, which costs fewer launches.
template <class Enqueue>
void gpu_group(const KernelWork& work, Enqueue enqueue) {
    if (comm.processes == 1) return enqueue();
    const CollectiveRange in_stream(work);
    nccl_group(work.name.text, enqueue);
}
#else  // one process, which has nobody to send to
template <class... Any>
void gpu_reduce_scatter(Any&&...) {}
template <class... Any>
void gpu_all_gather(Any&&...) {}
template <class... Any>
void gpu_all_to_all(Any&&...) {}
template <class Enqueue>
void gpu_group(const KernelWork&, Enqueue enqueue) {
    enqueue();
}
#endif

// Starts the sums that were postponed, as one piece of work.
inline void gpu_send_postponed() {
    const auto sums = std::exchange(gpu_comm.postponed, {});
    const int64_t bytes = std::exchange(gpu_comm.postponed_bytes, 0);
    if (sums.size() == 1) return sums[0]();
    if (sums.empty()) return;
    const int64_t sent = bytes / comm.processes * (comm.processes - 1);
    gpu_group(work::collective("reduce_scatters", (double)sums.size(), (double)sent), [&] {
        for (const auto& sum : sums) sum();
    });
}
// A reduce-scatter in place that may wait for others until there is a message's worth
// (comm.message_bytes).
template <class T>
void gpu_sum_later(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    if (comm.processes == 1) return;
    gpu_comm.postponed.push_back([=] { gpu_reduce_scatter(data, n_elems, bucket, stream); });
    gpu_comm.postponed_bytes += comm.processes * n_elems * (int64_t)sizeof(T);
    if (gpu_comm.postponed_bytes >= comm.message_bytes) gpu_send_postponed();
}
// Work enqueued in `stream` from now on starts after all collectives started so far.
inline void gpu_comm_join(cudaStream_t stream) {
    gpu_send_postponed();
    if (gpu_comm.stream) order_streams(gpu_comm.stream, stream);
}

// -------------------------------------------------------------------------------------------------
// weights that other processes have updated

// Layers whose weights may still be on their way while the host enqueues more: enough to keep the
// GPU busy, and far fewer launches than the driver keeps (gpu_comm_wait()).
constexpr int64_t LAYERS_AHEAD = 8;

// Starts collecting the weights of a bucket. What reads them must wait: gpu_wait_for_weights(), or
// gpu_comm_join() for those of all buckets.
template <class T>
void gpu_gather_weights(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    gpu_all_gather(data, n_elems, bucket, stream);
    std::vector<cudaEvent_t>& there = gpu_comm.weights_there;
    for (cudaEvent_t event; (int64_t)there.size() <= bucket; there.push_back(event))
        check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    check_cuda(cudaEventRecord(there[bucket], gpu_comm.stream), "ordering streams");
}
// Work enqueued in `stream` from now on starts after the weights of a bucket have arrived.
inline void gpu_wait_for_weights(int64_t bucket, cudaStream_t stream) {
    if (bucket < (int64_t)gpu_comm.weights_there.size())
        check_cuda(cudaStreamWaitEvent(stream, gpu_comm.weights_there[bucket], 0), "ordering streams");
}
// For the weights of a layer. The host, too, waits, for those of an earlier one.
inline void gpu_wait_for_layer(int64_t layer, cudaStream_t stream) {
    gpu_wait_for_weights(layer, stream);
    if (layer < (int64_t)gpu_comm.weights_there.size() && layer >= LAYERS_AHEAD)
        wait_for_event(gpu_comm.weights_there[layer - LAYERS_AHEAD], "the weights of the other processes");
}
