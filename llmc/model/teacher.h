// The model that --teacher names, beside the one that learns from it (adapt/distill.h): weights as
// they are, and the activations of a forward pass without gradients.
#pragma once
#include "llmc/adapt/distill.h"
#include "llmc/model/model.h"

inline std::shared_ptr<GPT2> new_teacher(const GPT2Config& config) {
    const auto teacher = std::make_shared<GPT2>();
    teacher->layout = parameter_layout(config, 1);
    return teacher;
}
// To be called when the sizes of the model are settled: the teacher has the same, but its own
// shape.
inline void settle_teacher(GPT2& model) {
    GPT2& teacher = *model.teacher;
    teacher.sizes = model.sizes;
    teacher.sizes.config = teacher.layout.config;
    teacher.sizes.training = false, teacher.sizes.cache_T = 0;
    teacher.format = model.format, teacher.backend = model.backend;
    teacher.activations = activation_layout(teacher.sizes);
}
inline int64_t teacher_weight_bytes(const GPT2& teacher) {
    return teacher.layout.total_elems() * teacher.sizes.floatX_bytes;
}

// What the classifier needs of it, after its forward pass; of a model without a teacher, nothing.
template <class floatX>
Teacher<floatX> teacher_of(GPT2& model) {
    if (!model.teacher) return {};
    GPT2& t = *model.teacher;
    return {t.act<floatX>(LNF), t.param<floatX>(WTE), t.act<floatX>(LOGITS),
            t.layout.config.C,  model.teacher_share,  model.teacher_temperature};
}
