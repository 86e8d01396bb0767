// The two passes of a micro-step as CUDA graphs, for --cuda-graph 1.
//
// Between two kernels of a stream the GPU is idle for a microsecond or two, and the host takes some
// for each launch. In a small batch, whose kernels are short, that is a part of the step that can
// be seen. A graph is a sequence of launches that has been captured, and is launched as one:
//
//     first       launched one by one: cuBLASLt chooses its algorithms, kernels are loaded
//     second      captured, and launched as a graph
//     from then   the graph is launched; if a captured value has changed, it is captured anew and updated before
//
// A graph has the arguments of its kernels, values and addresses, as they were when it was
// captured. So what differs from one micro-step to another is either
//
// - read from device memory, where upload() has put it: tokens, targets, tiles of documents; or
// - one of CapturedValues below, with which it is found out whether the graph still holds; or
// - outside of the graphs: the gradients of the embeddings, whose grid follows from the tokens, and
//   the update, with its learning rate, its corrections and its seed.
//
// With dropout, a document mask or a loss mask a captured value changes with each micro-step or
// step. Then capturing takes the host about as long as launching, and only the gaps on the GPU are
// those of graphs. An update affects the launches after it, not those on their way.
//
// Several processes have no graphs: their streams wait for each other by events, which other parts
// of the step record. Nor has a step that is traced, or searched for what is not finite, in which
// the host looks at kernels one by one.
//
// Source: CUDA C++ Programming Guide, CUDA Graphs; cuBLAS documentation, CUDA Graphs support.
#pragma once
#include <tuple>
#include "llmc/cuda/launch.cuh"
#include "llmc/gpt2/dropout.h"

// What the arguments of the kernels of a pass depend on, and may be another in the next micro-step.
struct CapturedValues {
    int64_t B = 0, T = 0;
    float dloss = 0;
    Dropout dropout{};
    int64_t document_tiles = 0;

    bool same_shape(const CapturedValues& o) const { return B == o.B && T == o.T; }
    bool operator==(const CapturedValues& o) const {
        const auto dropped = [](const Dropout& d) {
            return d.p == 0 ? std::tuple(0.0, uint64_t(0), int64_t(0), int64_t(0))
                            : std::tuple(d.p, d.seed, d.step, d.first_row);
        };
        return same_shape(o) && dloss == o.dloss && document_tiles == o.document_tiles &&
               dropped(dropout) == dropped(o.dropout);
    }
};

struct StepGraph {
    CapturedValues values;  // of the last time
    bool holds = false;     // `launches` was captured with these values
    cudaGraphExec_t launches = nullptr;

    // Captures what enqueue() enqueues in the stream.
    template <class Enqueue>
    void capture(cudaStream_t stream, Enqueue enqueue) {
        const char* const what = "capturing a graph";
        cudaGraph_t captured;
        check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), what);
        enqueue();
        check_cuda(cudaStreamEndCapture(stream, &captured), what);
        cudaGraphExecUpdateResultInfo result;
        if (launches && cudaGraphExecUpdate(launches, captured, &result) != cudaSuccess) {
            (void)cudaGetLastError();  // another sequence of kernels: another graph
            wait_for_stream(stream, what);
            free();
        }
        if (!launches) check_cuda(cudaGraphInstantiate(&launches, captured, 0), what);
        check_cuda(cudaGraphDestroy(captured), what);
    }
    void free() {
        if (launches) check_cuda(cudaGraphExecDestroy(launches), "freeing a graph");
        launches = nullptr;
    }
};

enum StepPart { FORWARD_PASS, BACKWARD_PASS, NUM_STEP_PARTS };

struct StepGraphs {
    bool on = false;
    // By whether the micro-step adds to the gradients of others, and whether it is the last of its
    // step.
    StepGraph graphs[NUM_STEP_PARTS][2][2];

    // Does what enqueue() enqueues in the stream: by a graph, where one can.
    template <class Enqueue>
    void run(StepPart part, bool add, bool last, const CapturedValues& values, cudaStream_t stream, Enqueue enqueue) {
        if (!on || trace.on || trace.at_end) return enqueue();
        StepGraph& graph = graphs[part][add][last];
        const bool first = !graph.values.same_shape(values), same = graph.holds && graph.values == values;
        graph.values = values, graph.holds = !first;
        if (first) return enqueue();
        if (!same) graph.capture(stream, enqueue);
        check_cuda(cudaGraphLaunch(graph.launches, stream), "launching a graph");
    }
    void free() {
        for (auto& part : graphs)
            for (auto& kind : part)
                for (StepGraph& graph : kind) graph.free();
    }
};
