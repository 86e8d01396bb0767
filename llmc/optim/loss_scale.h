// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2), for fp16. Many
// gradients are below 3e-8, which fp16 rounds to zero. So the backward pass begins with the
// gradient of scale * loss, and computes every gradient scale times as large. The update divides by
// the scale again (update_settings.h): in fp32, where a power of two changes no bit of a normal
// number.
//
// A scale that is too large makes a gradient overflow, to infinity or NaN. The norm of all
// gradients is then not finite, and the device skips the update, as it skips any step whose norm is
// not finite. The host, which waits for the norm at the end of every step anyway, sets the next
// scale (next_scale() in options/number_formats.h):
//
//     a gradient has overflowed                  scale / 2
//     SCALE_GOOD_STEPS steps without overflow    scale * 2
//
// So the scale follows the largest that does not overflow. The constants are those of PyTorch's
// GradScaler, which halves without end; here a gradient that is not finite at scale 1 ends the run,
// as in the other formats. All processes see the same norm, and so have the same scale.
#pragma once
#include <cmath>
#include <cstdint>

constexpr double FIRST_SCALE = 65536, LEAST_SCALE = 1;
constexpr int32_t SCALE_GOOD_STEPS = 2000;

// The scale and what its next change depends on, a part of a state file (checkpoint_files.h).
struct LossScale {
    double scale = 0;        // 0: none yet
    int32_t good_steps = 0;  // since the scale has changed
    int32_t skipped = 0;     // updates of the whole run that were skipped, in any format (update_settings.h)

    bool is_sane() const {
        const float s = (float)scale;
        return s > 0 && std::isfinite(s) && std::isfinite(1 / s) && good_steps >= 0 && skipped >= 0;
    }
};
