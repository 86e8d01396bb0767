// Streams, events, kernel launches and graphs. A stream is a queue of operations. They are executed
// by the OS thread that waits for them, and only as far as that wait requires: work that nobody
// waits for comes as late as possible, so that a missing wait shows.
//
// A graph is what was enqueued in a stream while it was captured: operations with the arguments
// that they had then. A launch enqueues copies of them.
#include "dev/cusim/cusim_inside.h"
#include <dlfcn.h>
#include <unistd.h>
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <memory>
#include <utility>
#include "llmc/base/clock.h"

namespace cusim {

struct Operation {
    std::string name;
    std::function<bool()> run;  // until it returns true
    cudaEvent_t event = nullptr;
    uint64_t version = 0;  // of the event: which of its records
    enum Kind { WORK, RECORD, WAIT } kind = WORK;
    bool begun = false;
    bool travels = false;  // CUSIM_COPY_MS: begins as soon as it can, and takes time
};

}  // namespace cusim

struct CusimGraph {
    std::vector<cusim::Operation> operations;
};
struct CusimGraphExec {
    std::vector<cusim::Operation> operations;
};
struct CusimStream {
    bool blocking;  // the default stream waits for it
    int priority;
    std::deque<cusim::Operation> queue;
    cudaGraph_t captured_by = nullptr;
    bool copies = false;  // has had operations that travel
};
struct CusimEvent {
    uint64_t recorded = 0, reached = 0;  // versions: of the newest record in a queue, of the newest executed
    double time = 0;
};

namespace cusim {

static std::vector<cudaStream_t>& streams() {
    static auto* all =
        new std::vector<cudaStream_t>{new CusimStream{true, 0, {}}};  // [0] stands for the default stream
    return *all;
}
static cudaStream_t stream_of(cudaStream_t stream) { return stream ? stream : streams()[0]; }
bool is_captured(cudaStream_t stream) { return stream_of(stream)->captured_by; }
void refuse_in_capture(const char* what) {
    if (std::any_of(streams().begin(), streams().end(), is_captured))
        fail(NOWHERE, "%s while a stream is captured, whose work is only recorded", what);
}

static bool ready(cudaStream_t s) {
    if (s->queue.empty()) return false;
    const Operation& front = s->queue.front();
    return front.kind != Operation::WAIT || front.event->reached >= front.version;
}

void hang_if_asked(const char* name) {
    static const std::string asked = getenv("CUSIM_HANG") ? getenv("CUSIM_HANG") : "";
    static uint64_t left = asked.empty() ? 0 : strtoull(asked.c_str() + asked.rfind(':') + 1, nullptr, 10);
    if (asked.substr(0, asked.rfind(':')) != name || asked.empty() || --left > 0) return;
    for (;;) pause();
}

// Whether the operation is complete, and out of the queue.
static bool run_front(cudaStream_t s) {
    Operation& op = s->queue.front();
    if (op.kind == Operation::WORK) {
        if (!std::exchange(op.begun, true)) hang_if_asked(op.name.c_str());
        if (!op.run()) return false;
        check_guards(op.name.c_str());
    }
    if (op.kind == Operation::RECORD && op.event->reached < op.version)
        op.event->reached = op.version, op.event->time = now_seconds() + event_clock_ahead_s;
    s->queue.pop_front();
    return true;
}

// Begins what travels, and ends it when its time is over: so does a GPU while it computes.
static void advance_copies() {
    const auto goes_on = [](cudaStream_t s) {
        return ready(s) && (s->queue.front().kind != Operation::WORK || s->queue.front().travels);
    };
    for (cudaStream_t s : streams())
        while (s->copies && goes_on(s) && run_front(s)) {}
}

// Runs operations until done() holds: those of the preferred stream, and of other streams only
// while the preferred one waits for them, or for another process. With a seed: whatever is ready,
// in random order. If an operation cannot be completed yet, goes on trying if it `waits`, else
// returns.
template <class Done>
static void run_until(cudaStream_t preferred, Done done, bool waits = true) {
    static uint64_t random = seed();
    if (DeviceAccess::open()) return;  // called by an operation that is being executed
    DeviceAccess access;
    while (advance_copies(), !done()) {
        std::vector<cudaStream_t> candidates;
        if (!seed() && preferred && ready(preferred)) candidates.push_back(preferred);
        else
            for (cudaStream_t s : streams())
                if (ready(s)) candidates.push_back(s);
        if (candidates.empty()) fail(NOWHERE, "the host waits for a stream that waits for an event nobody records");
        const size_t chosen = seed() ? random_bits(random) % candidates.size() : candidates.size() - 1;
        if (run_front(candidates[chosen])) continue;
        // Meanwhile the others go on.
        bool others = false;
        for (cudaStream_t s : streams())
            if (!others && s != candidates[chosen] && ready(s)) others = run_front(s);
        if (!waits) return;
        if (!others) usleep(100);
    }
}
void synchronize(cudaStream_t stream) {
    cudaStream_t s = stream_of(stream);
    if (is_captured(s)) refuse_in_capture("the host waits");
    run_until(s, [&] { return s->queue.empty(); });
}
void synchronize_all() {
    refuse_in_capture("the host waits");
    auto is_empty = [](cudaStream_t s) { return s->queue.empty(); };
    run_until(nullptr, [&] { return std::all_of(streams().begin(), streams().end(), is_empty); });
}

// What is enqueued in the default stream waits for all streams, except those that were created as
// non-blocking.
static void enqueue(cudaStream_t stream, Operation op) {
    if (is_captured(stream)) {
        if (op.kind != Operation::WORK) refuse_in_capture("an event is recorded or waited for");
        return stream_of(stream)->captured_by->operations.push_back(std::move(op));
    }
    for (cudaStream_t other : streams())
        if (!stream && other->blocking) synchronize(other);
    stream_of(stream)->queue.push_back(std::move(op));
}
void enqueue_host(const char* name, cudaStream_t stream, std::function<void()> work) {
    enqueue(stream, {name, [work = std::move(work)] { return work(), true; }});
}
void enqueue_polled(const char* name, cudaStream_t stream, std::function<bool()> poll) {
    if (is_captured(stream)) refuse_in_capture("a collective is enqueued");
    enqueue(stream, {name, std::move(poll)});
}
void enqueue_copy(const char* name, cudaStream_t stream, std::function<void()> copy) {
    static const double seconds = 1e-3 * (double)environment_number("CUSIM_COPY_MS", 0);
    if (seconds == 0 || is_captured(stream)) return enqueue_host(name, stream, copy);
    Operation op{name, [copy, begin = 0.0]() mutable {
                     if (begin == 0) begin = now_seconds();
                     const bool over = now_seconds() - begin >= seconds;
                     if (over) copy();
                     return over;
                 }};
    op.travels = stream_of(stream)->copies = true;
    enqueue(stream, std::move(op));
}

// -------------------------------------------------------------------------------------------------
// kernel launches

std::map<const void*, size_t>& dynamic_shared_limits() {
    static auto* all = new std::map<const void*, size_t>;
    return *all;
}

// CUSIM_LAUNCHES=file: every kernel's symbol with each combination of threads and dynamic shared
// memory it was launched with.
static void note_launch(const void* function, uint64_t threads, size_t shared_bytes) {
    static FILE* file = getenv("CUSIM_LAUNCHES") ? fopen(getenv("CUSIM_LAUNCHES"), "w") : nullptr;
    static std::map<std::pair<const void*, std::pair<uint64_t, size_t>>, bool> seen;
    if (!file || std::exchange(seen[{function, {threads, shared_bytes}}], true)) return;
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_sname) return;
    fprintf(file, "%s %llu %zu\n", info.dli_sname, (unsigned long long)threads, shared_bytes);
    fflush(file);
}

// CUSIM_DRY=file.
FILE* dry_run() {
    static FILE* file = getenv("CUSIM_DRY") ? fopen(getenv("CUSIM_DRY"), "w") : nullptr;
    if (!file && getenv("CUSIM_DRY")) fail(NOWHERE, "CUSIM_DRY: %s cannot be written", getenv("CUSIM_DRY"));
    return file;
}
bool note_dry(cudaStream_t stream, const char* fmt, ...) {
    if (!dry_run()) return false;
    char line[4096];
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(line, sizeof(line), fmt, arguments);
    va_end(arguments);
    if (is_captured(stream)) stream_of(stream)->captured_by->operations.push_back({line, nullptr});
    else fprintf(dry_run(), "%s\n", line);
    return true;
}
static bool note_dry_launch(const char* name, const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream) {
    Dl_info info;
    const char* symbol = dry_run() && dladdr(function, &info) && info.dli_sname ? info.dli_sname : "?";
    return note_dry(stream, "kernel %s %s %u %u %u %u %u %u %zu", name, symbol, grid.x, grid.y, grid.z, block.x,
                    block.y, block.z, shared_bytes);
}

static void check_launch(const char* name, const void* function, dim3 grid, dim3 block, size_t shared_bytes) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (threads == 0 || threads > MOST_THREADS || block.z > 64 || blocks == 0 || grid.x > 0x7FFFFFFFu ||
        grid.y > 65535 || grid.z > 65535)
        fail(NOWHERE, "kernel %s: a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads is beyond what a GPU accepts", name,
             grid.x, grid.y, grid.z, block.x, block.y, block.z);
    const auto limit = dynamic_shared_limits().find(function);
    const size_t shared_limit = limit == dynamic_shared_limits().end() ? SHARED_DEFAULT_BYTES : limit->second;
    if (shared_bytes > shared_limit)
        fail(NOWHERE,
             "kernel %s: %zu bytes of dynamic shared memory, %zu are allowed (cudaFuncSetAttribute raises it to %zu)",
             name, shared_bytes, shared_limit, SHARED_MOST_BYTES);
    for (const char* asked : {"CUSIM_COUNT", "CUSIM_COPIES"})
        if (!COUNTING && getenv(asked)) fail(NOWHERE, "%s: this program does not count; make it with COUNT=1", asked);
    note_launch(function, threads, shared_bytes);
}

void enqueue_kernel(const char* name, const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::function<void()> body) {
    catch_faults();
    check_launch(name, function, grid, block, shared_bytes);
    if (note_dry_launch(name, function, grid, block, shared_bytes, stream)) return;
    auto kernel = std::make_shared<Kernel>();
    kernel->name = name, kernel->function = function, kernel->grid = grid, kernel->block = block,
    kernel->shared_bytes = shared_bytes, kernel->hopper = runs_on_hopper(function);
    kernel->body = std::move(body), kernel->blocks = (uint64_t)grid.x * grid.y * grid.z;
    enqueue_host(name, stream, [kernel] { run_kernel(*kernel); });
}

}  // namespace cusim

// -------------------------------------------------------------------------------------------------
// streams and events of the CUDA runtime

using namespace cusim;

constexpr int HIGHEST_PRIORITY = -5;
bool cusim::has_highest_priority(cudaStream_t stream) { return stream_of(stream)->priority == HIGHEST_PRIORITY; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
    return *lowest = 0, *highest = HIGHEST_PRIORITY, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (!has_device()) return error(cudaErrorNoDevice);
    streams().push_back(*stream = new CusimStream{!(flags & cudaStreamNonBlocking), priority, {}});
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    synchronize(stream);
    streams().erase(std::find(streams().begin(), streams().end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronize(stream), cudaSuccess; }
// A program may ask again and again until the stream is done, so asking executes its work. Work
// that was not done when the program asked is not ready, which also is what cudaGetLastError()
// returns.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    static const uint64_t failure = environment_number("CUSIM_FAILS", 0);
    if (failure) return error((cudaError_t)failure);
    if (is_captured(stream)) refuse_in_capture("the host asks for a stream");
    if (stream_of(stream)->queue.empty()) return cudaSuccess;
    cudaStream_t s = stream_of(stream);
    run_until(
        s, [&] { return s->queue.empty(); }, false);
    return error(cudaErrorNotReady);
}
cudaError_t cudaDeviceSynchronize() { return synchronize_all(), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CusimEvent, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
// It does not wait: what is enqueued may still record the event or wait for it.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    static auto* destroyed = new std::vector<cudaEvent_t>;
    destroyed->push_back(event);
    const auto is_used = [](cudaEvent_t e) {
        const auto names_it = [&](const Operation& op) { return op.event == e; };
        return std::any_of(streams().begin(), streams().end(),
                           [&](cudaStream_t s) { return std::any_of(s->queue.begin(), s->queue.end(), names_it); });
    };
    const auto kept = std::partition(destroyed->begin(), destroyed->end(), is_used);
    for (auto it = kept; it != destroyed->end(); ++it) delete *it;
    destroyed->erase(kept, destroyed->end());
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    enqueue(stream, {"cudaEventRecord", nullptr, event, ++event->recorded, Operation::RECORD});
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    enqueue(stream, {"cudaStreamWaitEvent", nullptr, event, event->recorded, Operation::WAIT});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const uint64_t version = event->recorded;
    run_until(nullptr, [&] { return event->reached >= version; });
    return cudaSuccess;
}
// Executes what the event waits for, as far as that can be done now.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    const uint64_t version = event->recorded;
    const auto reached = [&] { return event->reached >= version; };
    run_until(nullptr, reached, false);
    return reached() ? cudaSuccess : error(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = (float)((end->time - begin->time) * 1e3), cudaSuccess;
}

// -------------------------------------------------------------------------------------------------
// graphs of the CUDA runtime

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    refuse_in_capture("another capture begins");
    stream_of(stream)->captured_by = new CusimGraph;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return *graph = std::exchange(stream_of(stream)->captured_by, nullptr), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    return *exec = new CusimGraphExec{graph->operations}, cudaSuccess;
}
// What may change are arguments and sizes of grids, not which operations follow each other. What
// has been launched is not changed.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo*) {
    const auto same_kind = [](const Operation& a, const Operation& b) {
        return a.name.substr(0, a.name.find(' ')) == b.name.substr(0, b.name.find(' '));
    };
    const auto &now = exec->operations, &then = graph->operations;
    if (!std::equal(now.begin(), now.end(), then.begin(), then.end(), same_kind))
        return error(cudaErrorGraphExecUpdateFailure);
    return exec->operations = graph->operations, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (dry_run()) fprintf(dry_run(), "graph %zu\n", exec->operations.size());
    for (const Operation& op : exec->operations)
        if (!note_dry(stream, "%s", op.name.c_str())) enqueue(stream, op);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
