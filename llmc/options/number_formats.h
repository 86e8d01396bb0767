// What the flags say about number formats: --loss-scale, --rounding, -w.
#pragma once
#include "llmc/base/fp16.h"
#include "llmc/optim/loss_scale.h"
#include "llmc/options/options.h"

// The number that --loss-scale states; 0 if it is dynamic. Exit 2 if it is neither.
inline double stated_scale(const Options& o) {
    double scale = 0;
    if (o.loss_scale == "dynamic") return 0;
    if (!parse_real(o.loss_scale, scale) || !LossScale{(float)scale}.is_sane())
        usage_error("--loss-scale %s is not accepted; accepted: dynamic, or a number above 0", o.loss_scale);
    return scale;
}

// Exit 2 if a flag does not go with the number format.
inline void check_number_format(NumberFormat format, const Options& o) {
    const double scale = stated_scale(o);
    if (format == FORMAT_FP16 && !o.master_weights)
        usage_error("-w 0 rounds bf16 weights; fp16 weights have an fp32 master copy, and -w 1 is accepted");
    const bool rounds_weights = format != FORMAT_FP32 && !o.master_weights;
    if (!rounds_weights && o.rounding == "nearest" && o.given.count("--rounding"))
        usage_error("--rounding nearest is for bf16 weights without a master copy; with -w 0 and bf16 it is accepted");
    if (format == FORMAT_FP32 && !o.master_weights && o.given.count("--master-weights") && o.max_steps != 0)
        warning("-w 0 has no effect in fp32: only 16-bit weights have a master copy");
    if (format != FORMAT_FP16 && scale > 0 && o.given.count("--loss-scale"))
        usage_error("--loss-scale %s: only fp16 has one (PRECISION=FP16); in fp32 and bf16 dynamic is accepted",
                    o.loss_scale);
}

// The scale with which a run begins, or goes on.
inline LossScale begin_scaling(NumberFormat format, const Options& o, const LossScale& saved) {
    if (format == FORMAT_FP16 && stated_scale(o) == 0 && saved.scale > 0) return saved;
    return {format != FORMAT_FP16 ? 1 : stated_scale(o) > 0 ? stated_scale(o) : FIRST_SCALE, 0, saved.skipped};
}

// Whether a lower scale may help after a step with a gradient that is not finite.
inline bool can_lower(const LossScale& s, const Options& o) { return stated_scale(o) == 0 && s.scale > LEAST_SCALE; }

// The scale after a step.
inline LossScale next_scale(NumberFormat format, LossScale s, const Options& o, bool overflow) {
    if (format != FORMAT_FP16 || stated_scale(o) > 0) return s;
    if (overflow) return {s.scale / 2, 0, s.skipped};
    if (++s.good_steps < SCALE_GOOD_STEPS || !std::isfinite((float)(2 * s.scale))) return s;
    return {2 * s.scale, 0, s.skipped};
}
