// The phases of a step (llmc/trace/step_phases.h) on a GPU. Entering a phase records an event in
// the stream; the events are read once the step's only wait is over. So the host does not wait for
// the clock, and a phase is the time that the stream spends between two events:
//
//     stream    | idle: data | forward | backward | idle or not: data | forward | ...
//
// The host loads the tokens of the next micro-batch while the GPU computes. The data phase is the
// time for which the GPU has to wait for them.
#pragma once
#include <vector>
#include "llmc/cuda/common.cuh"
#include "llmc/trace/step_phases.h"

struct GpuPhaseClock {
    cudaStream_t stream = nullptr;
    std::vector<cudaEvent_t> events;  // kept from step to step
    std::vector<StepPhase> entered;   // by the events of this step

    void enter(StepPhase phase) {
        if (!entered.empty() && entered.back() == phase) return;
        if (entered.size() == events.size()) {
            events.push_back(nullptr);
            check_cuda(cudaEventCreate(&events.back()), "making an event");
        }
        check_cuda(cudaEventRecord(events[entered.size()], stream), "timing");
        entered.push_back(phase);
    }
    // To be called after enter(NO_PHASE), once the host has waited for the stream.
    PhaseSeconds end_step() {
        PhaseSeconds seconds{};
        for (size_t i = 0; i + 1 < entered.size(); i++) {
            float ms = 0;
            check_cuda(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "timing");
            if (entered[i] != NO_PHASE) seconds[entered[i]] += ms / 1e3;
        }
        entered.clear();
        return seconds;
    }
    void free() {
        for (cudaEvent_t event : events) check_cuda(cudaEventDestroy(event), "freeing an event");
        events.clear();
    }
};
