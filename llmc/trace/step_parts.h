// What the time of a step goes to. A trainer says where a part begins; each instant belongs to the
// part that was entered last:
//
//     data          loading the tokens of a micro-batch
//     forward
//     backward
//     communication waiting for other processes; what travels while layers are computed takes no time of its own
//     update        norm of the gradient and AdamW
//
// A CPU reads its clock. A GPU has a clock that does not make the host wait (cuda/part_clock.cuh).
#pragma once
#include <array>
#include <functional>
#include "llmc/base/clock.h"

enum StepPart { PART_DATA, PART_FORWARD, PART_BACKWARD, PART_COMMUNICATION, PART_UPDATE, NO_PART };
typedef std::array<double, NO_PART> PartSeconds;

struct PartClock {
    bool on = false;
    PartSeconds seconds{};
    StepPart part = NO_PART;
    double since = 0;
    std::function<void(StepPart)> device_enter;  // the clock of a GPU, if the model lies on one
    std::function<PartSeconds()> device_end_step;

    void enter(StepPart next) {
        if (!on) return;
        if (device_enter) return device_enter(next);
        const double now = now_seconds();
        if (part != NO_PART) seconds[part] += now - since;
        part = next, since = now;
    }
    // To be called after enter(NO_PART); the next step begins at 0.
    PartSeconds end_step() {
        if (device_end_step) return device_end_step();
        const PartSeconds step = seconds;
        seconds = {};
        return step;
    }
};
