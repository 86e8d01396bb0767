// What the time of a step goes to. A trainer says where a phase begins; each instant belongs to
// the phase that was entered last:
//
//     data          loading the tokens of a micro-batch
//     forward
//     backward
//     communication waiting for other processes; what travels while layers are computed takes no time of its own
//     update        norm of the gradient and AdamW
//
// A CPU reads its clock. A GPU has a clock that does not make the host wait (cuda/phase_clock.cuh).
#pragma once
#include <array>
#include <functional>
#include "llmc/base/clock.h"

enum StepPhase { PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_COMMUNICATION, PHASE_UPDATE, NO_PHASE };
typedef std::array<double, NO_PHASE> PhaseSeconds;

struct PhaseClock {
    bool on = false;
    PhaseSeconds seconds{};
    StepPhase phase = NO_PHASE;
    double since = 0;
    std::function<void(StepPhase)> device_enter;  // the clock of a GPU, if the model lies on one
    std::function<PhaseSeconds()> device_end_step;

    void enter(StepPhase next) {
        if (!on) return;
        if (device_enter) return device_enter(next);
        const double now = now_seconds();
        if (phase != NO_PHASE) seconds[phase] += now - since;
        phase = next, since = now;
    }
    // To be called after enter(NO_PHASE); the next step begins at 0.
    PhaseSeconds end_step() {
        if (device_end_step) return device_end_step();
        const PhaseSeconds step = seconds;
        seconds = {};
        return step;
    }
};
