// Where the host waits for the GPU: here and nowhere else. The host asks again and again whether
// the stream is done, so that it can give up: in a run of several processes, a stream may wait for
// a process that hangs or has ended, and the functions of CUDA that wait would wait for ever.
//
// Copies between the GPU and ordinary memory of the host belong here, for they wait, too. CUDA
// brings such memory to the GPU by a buffer of its own: cudaMemcpy may return before the data has
// arrived, and kernels in a stream that does not block would read too early. In the order of the
// stream, they cannot.
#pragma once
#include <sched.h>
#include <unistd.h>
#include <cmath>
#include "llmc/base/clock.h"
#include "llmc/cuda/errors.cuh"

struct HostWait {
    double limit_s = INFINITY;  // with one process: its own GPU is all that it waits for
    // Called while the host waits, if set: ends the program if that has become pointless.
    void (*look_around)(const char* what) = nullptr;
};
inline HostWait host_wait;

// Calls done() until it returns true; exit 1 after host_wait.limit_s. `what` is for the message.
// After 50 ms it sleeps between two calls: long waits leave the core to others, and short ones are
// not prolonged.
template <class Done>
inline void wait_until(Done done, const char* what) {
    const double begin = now_seconds();
    while (!done()) {
        if (host_wait.look_around) host_wait.look_around(what);
        const double waited = now_seconds() - begin;
        if (waited > host_wait.limit_s)
            runtime_failure(
                "waited %.0f s in %s for the other processes: one of them hangs, or has ended (--comm-timeout sets how "
                "long)",
                host_wait.limit_s, what);
        if (waited < 0.05) sched_yield();
        else usleep(100);
    }
}

// What the runtime answers when asked whether work is done. The answer that it is not must be taken
// out of cudaGetLastError(), or the next launch would take it for its own error.
inline bool says_done(cudaError_t state, const char* what) {
    if (state == cudaErrorNotReady) return (void)cudaGetLastError(), false;
    return check_cuda(state, what), true;
}
// Whether everything enqueued in a stream so far is done.
inline bool is_done(cudaStream_t stream, const char* what) { return says_done(cudaStreamQuery(stream), what); }
inline void wait_for_stream(cudaStream_t stream, const char* what) {
    wait_until([&] { return is_done(stream, what); }, what);
}

// Whether everything enqueued before the newest record of an event is done.
inline bool is_done(cudaEvent_t event, const char* what) { return says_done(cudaEventQuery(event), what); }
inline void wait_for_event(cudaEvent_t event, const char* what) {
    wait_until([&] { return is_done(event, what); }, what);
}

// Copies between the GPU and ordinary memory of the host, after the work enqueued in the stream so
// far. Without the wait that comes first, cudaMemcpyAsync itself might wait.
inline void copy_and_wait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                          const char* what) {
    wait_for_stream(stream, what);
    check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), what);
    wait_for_stream(stream, what);
}
inline void copy_to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    copy_and_wait(to, from, bytes, cudaMemcpyHostToDevice, stream, "copying to the GPU");
}
inline void copy_to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    copy_and_wait(to, from, bytes, cudaMemcpyDeviceToHost, stream, "copying to the host");
}
