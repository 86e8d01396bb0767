// The collectives of comm.h on GPUs, by NCCL. They have a stream of their own beside the one that
// computes, so that the gradients of one layer travel while those of the next are computed. Events
// order the two streams; the host waits for neither. Without NCCL only one process is possible.
//
//     stream         | layer l backward | layer l-1 backward       | ...            | join | update
//     gpu_comm.stream                   | reduce-scatter, bucket l | bucket l-1     |
#pragma once
#include "llmc/comm.h"
#include "llmc/cuda/common.cuh"
#ifdef USE_NCCL
#include <nccl.h>
#endif

struct GpuComm {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
#ifdef USE_NCCL
    ncclComm_t nccl = nullptr;
#endif
};
inline GpuComm gpu_comm;

#ifdef USE_NCCL
inline void check_nccl(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) runtime_failure("NCCL, %s: %s", what, ncclGetErrorString(result));
}
// While the host waits for collectives: ends the run if they have failed.
inline void check_collectives(const char* what) {
    ncclResult_t failure = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(gpu_comm.nccl, &failure), what);
    check_nccl(failure, what);
}
template <class T>
constexpr ncclDataType_t nccl_type() {
    return sizeof(T) == 8 ? ncclFloat64 : sizeof(T) == 4 ? ncclFloat32 : ncclBfloat16;
}
#endif

// Connects the processes: rank 0 creates NCCL's id, comm.h sends it to the others.
inline void gpu_comm_start() {
    if (comm.processes == 1 || gpu_comm.stream) return;
#ifdef USE_NCCL
    ncclUniqueId id{};
    if (comm.rank == 0) check_nccl(ncclGetUniqueId(&id), "making an id");
    id = comm_gather(id, "NCCL's id")[0];
    check_nccl(ncclCommInitRank(&gpu_comm.nccl, (int)comm.processes, id, (int)comm.rank), "starting");
    host_wait.limit_s = (double)comm.timeout_s, host_wait.look_around = check_collectives;
    check_cuda(cudaStreamCreateWithFlags(&gpu_comm.stream, cudaStreamNonBlocking), "making a stream");
    check_cuda(cudaEventCreateWithFlags(&gpu_comm.event, cudaEventDisableTiming), "making an event");
#ifdef CUSIM
    comm.before_gather = [] { check_cuda(cudaDeviceSynchronize(), "moving the simulated GPU"); };
#endif
#else
    usage_error("--num-processes %lld: this program was built without NCCL; 1 is accepted", (long long)comm.processes);
#endif
}

// Work enqueued in `second` from now on starts after the work enqueued in `first` so far.
inline void order_streams(cudaStream_t first, cudaStream_t second) {
    check_cuda(cudaEventRecord(gpu_comm.event, first), "ordering streams");
    check_cuda(cudaStreamWaitEvent(second, gpu_comm.event, 0), "ordering streams");
}
// Work enqueued in `stream` from now on starts after all collectives enqueued so far.
inline void gpu_comm_join(cudaStream_t stream) {
    if (comm.processes > 1) order_streams(gpu_comm.stream, stream);
}

// As in comm.h, on data (processes * n_elems), which `stream` may still be computing. `bucket` is
// for the trace; -1: not a bucket.
template <class T>
void gpu_reduce_scatter(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    if (comm.processes == 1) return;
    const KernelWork sent = work::collective("reduce_scatter", bucket, (comm.processes - 1) * n_elems * sizeof(T));
    const Range range(sent);
    order_streams(stream, gpu_comm.stream);
    const StreamRange in_stream(sent, gpu_comm.stream);
#ifdef USE_NCCL
    check_nccl(ncclReduceScatter(data, data + comm.rank * n_elems, n_elems, nccl_type<T>(), ncclSum, gpu_comm.nccl,
                                 gpu_comm.stream),
               "reduce-scatter");
#else
    (void)data;
#endif
}
template <class T>
void gpu_all_gather(T* data, int64_t n_elems, int64_t bucket, cudaStream_t stream) {
    if (comm.processes == 1) return;
    const KernelWork sent = work::collective("all_gather", bucket, (comm.processes - 1) * n_elems * sizeof(T));
    const Range range(sent);
    order_streams(stream, gpu_comm.stream);
    const StreamRange in_stream(sent, gpu_comm.stream);
#ifdef USE_NCCL
    check_nccl(ncclAllGather(data + comm.rank * n_elems, data, n_elems, nccl_type<T>(), gpu_comm.nccl, gpu_comm.stream),
               "all-gather");
#else
    (void)data;
#endif
}
