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
#pragma once
#include <optional>
#include "llmc/cuda/nccl.cuh"

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
// A collective of a group that begins when `stream` has computed what it sends: slices of so many
// bytes. enqueue(communicator) enqueues it in gpu_comm.stream. `bucket` is for the trace; -1: not a
// bucket.
template <class Enqueue>
void enqueue_collective(const char* name, GpuGroup group, int64_t bucket, int64_t slice_bytes, cudaStream_t stream,
                        Enqueue enqueue) {
    const int64_t processes = members(group).processes;
    if (comm.processes == 1 || processes == 1) return;
    const KernelWork sent = work::collective(name, bucket, (processes - 1) * slice_bytes);
    const Range range(sent);
    order_streams(stream, gpu_comm.stream);
    const CollectiveRange in_stream(sent);
    enqueue(gpu_comm.nccl[gpu_comm.nccl[group] ? group : ALL_GPUS]);
}

// The collectives on buckets of comm.h, on data (processes * n_elems). mine: where this process's
// slice goes, or comes from; null: where it lies in data.
template <class T>
void gpu_reduce_scatter(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream, T* mine = nullptr) {
    enqueue_collective("reduce_scatter", SHARD_GPUS, bucket, n_elems * sizeof(T), stream, [&](ncclComm_t nccl) {
        finish_call(ncclReduceScatter(data, mine ? mine : data + comm.shards.rank * n_elems, n_elems, nccl_type<T>(),
                                      ncclSum, nccl, gpu_comm.stream),
                    "a reduce-scatter");
    });
}
template <class T>
void gpu_all_gather(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream, const T* mine = nullptr,
                    GpuGroup group = SHARD_GPUS) {
    enqueue_collective("all_gather", group, bucket, n_elems * sizeof(T), stream, [&](ncclComm_t nccl) {
        finish_call(ncclAllGather(mine ? mine : data + members(group).rank * n_elems, data, n_elems, nccl_type<T>(),
                                  nccl, gpu_comm.stream),
                    "an all-gather");
    });
}
// data (n_elems), a slice of a sum = the sum over its replicas.
template <class T>
void gpu_sum_over_replicas(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    const int64_t slice_bytes = 2 * (n_elems / comm.replicas.processes) * sizeof(T);  // summed, then collected
    enqueue_collective("all_reduce", REPLICA_GPUS, bucket, slice_bytes, stream, [&](ncclComm_t nccl) {
        finish_call(ncclAllReduce(data, data, n_elems, nccl_type<T>(), ncclSum, nccl, gpu_comm.stream),
                    "an all-reduce");
    });
}

// Slice r of `from` (processes * n_elems) goes to rank r, where it becomes slice `rank` of `to`.
inline void gpu_all_to_all(float* to, const float* from, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    const auto exchange = [&](ncclComm_t nccl) {
        for (int r = 0; r < (int)comm.processes; r++) {
            check_nccl(ncclSend(from + r * n_elems, n_elems, ncclFloat32, r, nccl, gpu_comm.stream), "a send");
            check_nccl(ncclRecv(to + r * n_elems, n_elems, ncclFloat32, r, nccl, gpu_comm.stream), "a receive");
        }
    };
    enqueue_collective("all_to_all", ALL_GPUS, bucket, n_elems * sizeof(float), stream,
                       [&](ncclComm_t nccl) { nccl_group("an exchange", [&] { exchange(nccl); }); });
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
void gpu_sum_over_replicas(Any&&...) {}
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
    if (sums.size() == 1) return sums[0].sum(), sums[0].over_replicas();
    if (sums.empty()) return;
    const int64_t sent = bytes / comm.shards.processes * (comm.shards.processes - 1);
    gpu_group(work::collective("reduce_scatters", (double)sums.size(), (double)sent), [&] {
        for (const PostponedOnGpu& postponed : sums) postponed.sum();
    });
    for (const PostponedOnGpu& postponed : sums) postponed.over_replicas();
}
// A reduce-scatter in place that may wait for others until there is a message's worth
// (comm.message_bytes).
template <class T>
void gpu_sum_later(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    if (comm.processes == 1) return;
    gpu_comm.postponed.push_back(
        {[=] { gpu_reduce_scatter(data, n_elems, bucket, stream); },
         [=] { gpu_sum_over_replicas(data + comm.shards.rank * n_elems, n_elems, bucket, stream); }});
    gpu_comm.postponed_bytes += comm.shards.processes * n_elems * (int64_t)sizeof(T);
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
