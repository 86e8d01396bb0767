// NCCL's part of the simulated GPU: collectives over MPI, as operations of their stream. Sums of bf16 are taken in fp32 and rounded once.
#include "dev/cusim/include/nccl.h"
#include <vector>
#include "dev/cusim/include/cuda_bf16.h"
#ifdef USE_MPI
#define OMPI_SKIP_MPICXX
#include <mpi.h>

struct CusimNccl {
    MPI_Comm mpi;
    int processes;
};

static size_t type_bytes(ncclDataType_t type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2; }

const char* ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "invalid usage"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return memset(id, 7, sizeof(*id)), ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int processes, ncclUniqueId id, int rank) {
    int size, mpi_rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    for (char byte : id.internal)
        if (byte != 7) return ncclInvalidUsage;
    if (size != processes || mpi_rank != rank) return ncclInvalidUsage;
    *comm = new CusimNccl{MPI_COMM_NULL, processes};
    MPI_Comm_dup(MPI_COMM_WORLD, &(*comm)->mpi);
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess, ncclSuccess; }

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    if (type == ncclFloat64) return ncclInvalidUsage;
    cusim::enqueue_host("ncclReduceScatter", stream, [=] {
        std::vector<float> mine(count * comm->processes), sum(count);
        for (size_t i = 0; i < mine.size(); i++) mine[i] = type == ncclFloat32 ? ((const float*)send)[i] : (float)((const __nv_bfloat16*)send)[i];
        MPI_Reduce_scatter_block(mine.data(), sum.data(), (int)count, MPI_FLOAT, MPI_SUM, comm->mpi);
        for (size_t i = 0; i < count; i++) {
            if (type == ncclFloat32) ((float*)receive)[i] = sum[i];
            else ((__nv_bfloat16*)receive)[i] = sum[i];
        }
    });
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    cusim::enqueue_host("ncclAllGather", stream, [=] {
        const size_t bytes = count * type_bytes(type);
        const std::vector<char> mine((const char*)send, (const char*)send + bytes);  // send may lie in receive
        MPI_Allgather(mine.data(), (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE, comm->mpi);
    });
    return ncclSuccess;
}
#endif
