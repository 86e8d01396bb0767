// How the GPUs of a run are brought together, by NCCL, and how a run ends in which NCCL or another
// process fails. What they do together is in comm.cuh.
//
// The same run has the same bits on the same GPUs in the same machines: NCCL adds along rings,
// which follow how the GPUs are connected. Switches of NVLink can add, too (NVLS), but in another
// order from call to call (github.com/NVIDIA/nccl/issues/1497), so they do not here.
// NCCL_NVLS_ENABLE=1 in the environment lets them; with NCCL_ALGO set, nothing is changed.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>
#include "llmc/comm/tcp.h"
#include "llmc/cuda/common.cuh"
#ifdef USE_NCCL
#include <nccl.h>
#endif

// Who takes part in a collective: comm.h says who they are.
enum GpuGroup { ALL_GPUS, SHARD_GPUS, REPLICA_GPUS, NUM_GPU_GROUPS };
inline CommGroup members(GpuGroup group) {
    return group == ALL_GPUS ? everyone() : group == SHARD_GPUS ? comm.shards : comm.replicas;
}

// A sum that waits for others, and what is then summed over replicas.
struct PostponedOnGpu {
    std::function<void()> sum, over_replicas;
};
struct GpuComm {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    std::vector<cudaEvent_t> weights_there;  // by bucket: what other processes have updated has arrived
    bool grouping = false;                   // between ncclGroupStart and ncclGroupEnd
    std::vector<PostponedOnGpu> postponed;   // sums that wait for others (--bucket-mb), of so many bytes
    int64_t postponed_bytes = 0;
#ifdef USE_NCCL
    ncclComm_t nccl[NUM_GPU_GROUPS] = {};  // null: of one GPU, or that of all
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
                    ncclGetLastError(gpu_comm.nccl[ALL_GPUS]));
}
// Whether NCCL has done what its last call began.
inline bool nccl_is_ready(const char* what) {
    bool ready = true;
    for (ncclComm_t communicator : gpu_comm.nccl) {
        ncclResult_t state = ncclSuccess;
        if (communicator) check_nccl(ncclCommGetAsyncError(communicator, &state), what);
        check_nccl(state, what);
        ready &= state == ncclSuccess;
    }
    return ready;
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
    std::thread([] {
        for (int group = NUM_GPU_GROUPS - 1; group >= 0; group--)
            if (gpu_comm.nccl[group] && ncclCommAbort(gpu_comm.nccl[group]) != ncclSuccess) return;
        aborted = true;
    }).detach();
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
    for (int group = NUM_GPU_GROUPS - 1; group >= 0; group--) {
        if (!gpu_comm.nccl[group]) continue;
        finish_call(ncclCommFinalize(gpu_comm.nccl[group]), "the end of NCCL");
        check_nccl(ncclCommDestroy(std::exchange(gpu_comm.nccl[group], nullptr)), "ending");
    }
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
    ncclComm_t& all = gpu_comm.nccl[ALL_GPUS];
    check_nccl(ncclCommInitRankConfig(&all, (int)comm.processes, id, (int)comm.rank, &config), "starting");
    host_wait = {(double)comm.timeout_s, look_at_processes};
    end_after_failure = end_without_collectives, comm.at_end = gpu_comm_end;
    finish_call(ncclInProgress, "the start of NCCL");
    for (const GpuGroup group : {SHARD_GPUS, REPLICA_GPUS}) {
        const CommGroup of = members(group);
        if (comm.replicas.processes == 1) continue;  // a bucket is in slices among all
        finish_call(ncclCommSplit(all, (int)of.first, (int)of.rank, &gpu_comm.nccl[group], &config), "the groups");
    }
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
