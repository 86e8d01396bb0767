// NCCL in the simulator: collectives of the processes by llmc/comm.h (MPI or TCP), as operations of
// their stream. Sums of bf16 are computed in fp32 and rounded once.
#include "dev/cusim/include/nccl.h"
#include <vector>
#include "dev/cusim/include/cuda_bf16.h"
#include "llmc/comm.h"

struct CusimNccl {
    int processes;
};

static size_t type_bytes(ncclDataType_t type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2; }

const char* ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "invalid usage"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return memset(id, 7, sizeof(*id)), ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* nccl, int processes, ncclUniqueId id, int rank) {
    for (char byte : id.internal)
        if (byte != 7) return ncclInvalidUsage;
    if (comm.processes != processes || comm.rank != rank) return ncclInvalidUsage;
    *nccl = new CusimNccl{processes};
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess, ncclSuccess; }

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t nccl, cudaStream_t stream) {
    if (type == ncclFloat64) return ncclInvalidUsage;
    cusim::enqueue_host("ncclReduceScatter", stream, [=] {
        std::vector<float> values(count * nccl->processes);
        for (size_t i = 0; i < values.size(); i++)
            values[i] = type == ncclFloat32 ? ((const float*)send)[i] : (float)((const __nv_bfloat16*)send)[i];
        comm_reduce_scatter(values.data(), count, "ncclReduceScatter");
        for (size_t i = 0; i < count; i++) {
            const float sum = values[comm.rank * count + i];
            if (type == ncclFloat32) ((float*)receive)[i] = sum;
            else ((__nv_bfloat16*)receive)[i] = sum;
        }
    });
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t,
                           cudaStream_t stream) {
    cusim::enqueue_host("ncclAllGather", stream, [=] {
        const size_t bytes = count * type_bytes(type);
        const std::vector<char> mine((const char*)send, (const char*)send + bytes);  // send may lie in receive
        comm_gather(receive, mine.data(), bytes, "ncclAllGather");
    });
    return ncclSuccess;
}
