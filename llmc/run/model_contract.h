// What a trainer provides: a struct Model with the members named below, and these functions on it.
// A run (train.h) calls nothing else of a trainer. run_main instantiates ModelContract, so that the
// compiler's first error names a function that is missing or returns another type.
#pragma once
#include <functional>
#include <type_traits>
#include "llmc/plan/device_reading.h"
#include "llmc/checkpoint/model.h"
#include "llmc/plan/plan_device.h"
#include "llmc/trace/step_parts.h"
#include "llmc/optim/update_rule.h"

#define PROVIDES(result, call) \
    static_assert(std::is_same<decltype(call), result>::value, "the trainer must provide: " #result " " #call)

template <class Model>
struct ModelContract {
    typedef typename Model::Element floatX;

    // What the calls below are given; declared for their types alone.
    static Model& model;
    static Sizes& sizes;
    static const Options& options;
    static const UpdateRule& rule;
    static const std::function<void()>& meanwhile;
    static StepPart part;
    static const int *x, *y;
    static int token;
    static int64_t n, B, T, micro, position, layer;
    static float dloss, *state, *losses;
    static void* memory;
    static const void* there;
    static double reached;
    static floatX* weights;
    static const float* values;

    // ---- members

    PROVIDES(ParameterLayout&, (model.layout));
    PROVIDES(Sizes&, (model.sizes));
    // The micro-batches of this step, at most those of Sizes; set before its first one.
    PROVIDES(int64_t&, (model.micro_steps));
    PROVIDES(ActivationLayout&, (model.activations));
    // What this process updates of every bucket.
    PROVIDES(BucketSlice&, (model.slice));
    // The optimizer; its state and fp32 master weights (optimizer_state.h), or null.
    PROVIDES(Optimizer&, (model.optimizer));
    PROVIDES(void*&, (model.m));
    PROVIDES(void*&, (model.v));
    PROVIDES(float*&, (model.factors));
    // update() calls it, if it is not null, before directions (directions.h) replace the gradients.
    PROVIDES(std::function<void()>&, (model.gradients_complete));
    PROVIDES(float*&, (model.master));
    // The clock of the parts of a step (step_parts.h).
    PROVIDES(void, model.parts.enter(part));
    PROVIDES(PartSeconds, model.parts.end_step());
    // A tensor of the parameters; an activation in floatX, and one in fp32.
    PROVIDES(floatX*, model.param(0, layer));
    PROVIDES(floatX*, model.act(0, layer));
    PROVIDES(float*, model.act32(0, layer));

    // ---- memory

    // Settles the number of threads and all sizes that depend on the device, in `sizes` and in the
    // model. Exit 2 if the device cannot compute the model. Allocates nothing.
    PROVIDES(void, settle_device(model, sizes, options));
    // The memory that the model would take, row by row; its sum is what allocate() allocates.
    PROVIDES(std::vector<PlanRow>, plan_rows(sizes, options, &model));
    // What the process takes of the host's memory besides, where the model lies on a GPU.
    PROVIDES(std::vector<PlanRow>, host_plan_rows(sizes, options, &model));
    // The device of this machine, as far as it is known; for --plan.
    PROVIDES(PlanDevice, this_device(model, options));
    // Allocates parameters, optimizer state, activations and gradients; exit 1 if memory is too
    // small.
    PROVIDES(void, allocate(model, sizes, options));
    // n values of the model, weights or fp32 state, as fp32 on the host, valid until the next call.
    PROVIDES(const float*, to_host(model, weights, n));
    PROVIDES(const float*, to_host(model, state, n));
    // n fp32 values from the host into the model's weights, rounded, or into its fp32 state.
    PROVIDES(void, to_device(model, weights, values, n));
    PROVIDES(void, to_device(model, state, values, n));
    // Bytes of the model's memory as they are, to the host or from it.
    PROVIDES(void, copy_out(model, memory, there, n));
    PROVIDES(void, copy_in(model, memory, there, n));

    // The gradient of a tensor of one layer, summed over the micro-steps so far: n values from
    // element `first` on, as fp32 on the host, valid until the next such call. After the update:
    // the sum over all processes, in this process's slices of the buckets; or the directions.
    PROVIDES(const float*, gradient_data(model, 0, layer, n, n));

    // ---- computation

    // Forward and backward pass of micro-batch number `micro` = 0, 1, ... of a step; x, y (B,T) are
    // inputs and targets (IGNORED_TARGET: the position has no loss), dloss is the gradient of each
    // position's loss. Gradients of micro-batches add up; number 0 begins a new sum.
    PROVIDES(void, micro_step(model, x, y, B, T, dloss, micro));
    // The end of a step: loss, norm, clipping, the optimizer. Waits for the device; before that,
    // while it computes, the host may call `meanwhile`, once.
    PROVIDES(StepResult, update(model, rule, meanwhile));
    // losses (B,T) of all positions, on the host, without gradients.
    PROVIDES(void, evaluate(model, x, y, B, T, losses));
    // Generation: the logits (V) of what follows n tokens, at most T of Sizes, the first of which
    // is at position 0.
    PROVIDES(const float*, prefill(model, x, n));
    // The logits (V) of what follows `token` at `position`. The positions before it have been
    // prefilled or decoded already.
    PROVIDES(const float*, decode(model, token, position));

    // ---- what the log says

    // The peak of the device in FLOP/s. 0 if it is unknown, or less than a step has reached.
    PROVIDES(double, peak_flops(model, reached));
    // Names what a trace shows beside the program: threads or streams (trace.h).
    PROVIDES(void, trace_device(model));
    // Whose kernels compute; the same for all processes of a run.
    PROVIDES(const char*, kernels_name(model));
    // What computes, in which precision, with which kernels (device_reading.h).
    PROVIDES(DetectedDevice, detected(model));
    // Clocks, power and the like for -lg; empty if there is nothing to say.
    PROVIDES(std::string, device_status(model));
    // The largest amount of the device's memory that this process has taken so far.
    PROVIDES(int64_t, peak_bytes(model));
    // What the device told about itself during this step.
    PROVIDES(DeviceReading, device_reading(model));
};
#undef PROVIDES
