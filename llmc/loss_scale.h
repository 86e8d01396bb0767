// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2), for fp16. Many
// gradients are below 3e-8, which fp16 rounds to zero. So the backward pass begins with the
// gradient of scale * loss, and computes every gradient scale times as large. The update divides by
// the scale again (update_rule.h): in fp32, where a power of two changes no bit of a normal number.
//
// A scale that is too large makes a gradient overflow, to infinity or NaN. The norm of all
// gradients is then not finite, and the device skips the update, as it skips any step whose norm is
// not finite. The host, which waits for the norm at the end of every step anyway, sets the next
// scale:
//
//     a gradient has overflowed                  scale / 2
//     SCALE_GOOD_STEPS steps without overflow    scale * 2
//
// So the scale follows the largest that does not overflow. The constants are those of PyTorch's
// GradScaler. That halves without end; here a gradient that is not finite at scale 1 ends the run,
// as in the other formats. A skipped step counts as a step of the run and of its learning rate, but
// not as an update: the t of an optimizer's bias correction does not count it, as in PyTorch. All
// processes see the same norm, and so have the same scale.
#pragma once
#include <cmath>
#include "llmc/fp16.h"
#include "llmc/options.h"

constexpr double FIRST_SCALE = 65536, LEAST_SCALE = 1;
constexpr int32_t SCALE_GOOD_STEPS = 2000;

// Part of a state file (checkpoint_files.h).
struct LossScale {
    double scale = 0;                     // 0: none yet
    int32_t good_steps = 0, skipped = 0;  // steps since the scale has changed; skipped steps of the whole run

    bool is_sane() const {
        const float s = (float)scale;
        return s > 0 && std::isfinite(s) && std::isfinite(1 / s) && good_steps >= 0 && skipped >= 0;
    }
};

// The number that --loss-scale states; 0 if it is dynamic. Exit 2 if it is neither.
inline double stated_scale(const Options& o) {
    double scale = 0;
    if (o.loss_scale == "dynamic") return 0;
    if (!parse_real(o.loss_scale, scale) || !LossScale{(float)scale}.is_sane())
        usage_error("--loss-scale %s is not accepted; accepted: dynamic, or a number above 0", o.loss_scale.c_str());
    return scale;
}

// Exit 2 if a flag does not go with the number format.
template <class floatX>
inline void check_number_format(const Options& o) {
    const double scale = stated_scale(o);
    if (is_fp16<floatX>() && !o.master_weights)
        usage_error("-w 0 rounds bf16 weights; fp16 weights have an fp32 master copy, and -w 1 is accepted");
    const bool rounds_weights = sizeof(floatX) == 2 && !o.master_weights;
    if (!rounds_weights && o.rounding == "nearest" && o.given.count("--rounding"))
        usage_error("--rounding nearest is for bf16 weights without a master copy; with -w 0 and bf16 it is accepted");
    if (sizeof(floatX) == 4 && !o.master_weights && o.given.count("--master-weights") && o.max_steps != 0)
        warning("-w 0 has no effect in fp32: only 16-bit weights have a master copy");
    if (!is_fp16<floatX>() && scale > 0 && o.given.count("--loss-scale"))
        usage_error("--loss-scale %s: only fp16 has one (PRECISION=FP16); in fp32 and bf16 dynamic is accepted",
                    o.loss_scale.c_str());
}

// The scale with which a run begins, or goes on.
template <class floatX>
inline LossScale begin_scaling(const Options& o, const LossScale& saved) {
    if (!is_fp16<floatX>()) return {1, 0};
    if (stated_scale(o) > 0) return {stated_scale(o), 0, saved.skipped};
    return saved.scale > 0 ? saved : LossScale{FIRST_SCALE, 0};
}

// Whether a lower scale may help after a step with a gradient that is not finite.
inline bool can_lower(const LossScale& s, const Options& o) { return stated_scale(o) == 0 && s.scale > LEAST_SCALE; }

// The scale after a step.
template <class floatX>
inline LossScale next_scale(LossScale s, const Options& o, bool overflow) {
    if (!is_fp16<floatX>() || stated_scale(o) > 0) return s;
    if (overflow) return {s.scale / 2, 0, s.skipped + 1};
    if (++s.good_steps < SCALE_GOOD_STEPS || !std::isfinite((float)(2 * s.scale))) return s;
    return {2 * s.scale, 0, s.skipped};
}
