// The model in memory: one struct for both trainers and for the services of a run. Its tensors are
// listed in gpt2/tensors.h, its activations in gpt2/activations.h; floatX, the type of weights and
// activations, is fp32, bf16 or fp16.
//
// A service knows the model by this struct alone. What only the trainer can do with it (a forward
// pass) and what only its device can do (a copy to the host) are functions that the trainer's main
// sets.
#pragma once
#include <functional>
#include <memory>
#include <tuple>
#include "llmc/adapt/weight_codes.h"
#include "llmc/base/bf16.h"
#include "llmc/base/fp16.h"
#include "llmc/compress/gradient_codes.h"
#include "llmc/compress/sync.h"
#include "llmc/gpt2/activations.h"
#include "llmc/gpt2/bucket_places.h"
#include "llmc/gpt2/dropout.h"
#include "llmc/optim/average.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/options/options.h"
#include "llmc/trace/step_phases.h"

// One micro-batch of this process.
struct Batch {
    const int *x, *y;  // (B,T): inputs and targets; a position whose target is IGNORED_TARGET has no loss
    int64_t B, T;
    float dloss = 0;    // the gradient of each position's loss: the loss scale, 1 but in fp16, over the step's tokens
    int64_t micro = 0;  // its number in the step
    bool last = true;   // of the step
    Dropout dropout = {};  // of a training run that has it
};

// What a forward pass leaves beside lnf: nothing, codes of what the backward pass needs
// (kept_codes.h), or in the cache of generation keys and values of its one sequence.
enum Leaves { LEAVES_NOTHING, LEAVES_CODES, LEAVES_CACHE };
// Gradients whose sum over the processes will be added to what this process keeps of them, or begin
// it.
struct ArrivingSum {
    int64_t place;  // of a layer, or of the last bucket, in which it is (gpt2/bucket_places.h)
    const float* sum;
    float* kept;
    int64_t elems;
    bool add;
    int64_t collective;  // to be waited for (comm.h)
};

struct Backend;
struct Gpu;

struct GPT2 {
    ParameterLayout layout;
    Sizes sizes;
    ActivationLayout activations;
    BucketSlice slice;                                // what this process updates of every bucket
    BucketPlaces weight_places, gradient_places;      // where buckets lie in params, and in grads (on a GPU: grad_sums)
    BucketsThere weights_there;                       // of sharded weights
    int64_t fetching[BucketPlaces::LAYERS + 1] = {};  // by place: the collective that brings them (comm.h)
    int64_t micro_steps = 1;                          // of this step, at most those of Sizes
    NumberFormat format = FORMAT_FP32;

    // ---- in the memory of the device
    void* params = nullptr;    // weight_places.elems() in floatX, then layout.frozen_elems
    void* borrowed = nullptr;  // where the last bucket is seen whole, if its place is not in params
    // --weights: the matrices, in place of those in params; and room in floatX for one, on a CPU
    // for a strip of one.
    WeightCodes codes;
    void* decoded_strip = nullptr;
    // Gradients, and their sums in fp32 where there are some (Sizes::sums_gradients()), else null.
    // A CPU adds to the sums at once, and has nothing else: grads are grad_sums. On a GPU grads are
    // those of one micro-step.
    void* grads = nullptr;
    float* grad_sums = nullptr;
    char* acts = nullptr;  // activations.total_bytes
    // The optimizer's state (optim/optimizer_state.h), null where it keeps none. m and v: of what
    // this process updates, v of Muon of the last bucket alone; in fp32 or smaller. Factors: those
    // of the whole model, in every process.
    void *m = nullptr, *v = nullptr;
    float* factors = nullptr;
    float* master = nullptr;         // slice.state_elems() fp32 weights, or null if there are none
    float* collected = nullptr;      // on a CPU: what a step collects for factors, or null
    CompressedGradients compressed;  // --compress-gradients
    // --sync-every: whether processes train apart, and how they go on from a meeting
    // (compress/sync.h); of this rank's slices, w and n of outer steps, null where means are
    // enough.
    bool apart = false;
    OuterStep outer;
    float *outer_weights = nullptr, *outer_momentum = nullptr;

    float* average = nullptr;  // --ema: of the weights in this rank's slices (optim/average.h), or null
    bool averages = false;
    bool prunes = false;  // --prune: weights of the layers' matrices that are 0 stay 0 (adapt/prune.h)

    std::shared_ptr<GPT2> teacher;  // --teacher: what this model learns from (adapt/distill.h), or null
    float teacher_share = 0, teacher_temperature = 1;

    Optimizer optimizer = ADAMW;                                    // --optimizer
    bool offloads_state = false;                                    // m, v and master lie in a file (cpu/offload.h)
    char *offloaded_acts = nullptr, *offloaded_acts_end = nullptr;  // the part of acts that does
    double peak = 0;                                                // FLOP/s of the device, as far as it is known
    std::shared_ptr<Gpu> gpu;  // streams and the like (cuda/gpu.cuh); null on a CPU

    // ---- of this step
    bool in_update = false;             // on a CPU: weights and state may be those of no complete step
    double loss_sum = 0;                // on a CPU: over the tokens so far
    std::vector<ArrivingSum> arriving;  // sharded gradients: sums over the processes that were started
    bool noise_scale = false;           // --noise-scale 1: the step needs small_squares
    double small_squares = 0;           // on a CPU: squared norm of the gradient of the first micro-step
    PhaseClock phases;                  // what the time of the step goes to
    // Called before update directions replace gradients (optim/whole_tensors.h), if it is set.
    std::function<void()> gradients_complete;
    std::vector<float> host_values;  // what to_host() returned last

    // ---- what the trainer provides
    // losses (B,T) of all positions, on the host, without gradients.
    void (*evaluate)(GPT2&, const int* x, const int* y, int64_t B, int64_t T, float* losses) = nullptr;
    // Generation: the logits (V) of what follows n tokens, at most T of Sizes, the first of which
    // is at position 0; and of what follows `token` at `position`, the positions before which have
    // been prefilled or decoded. On the host, until the next call.
    const float* (*prefill)(GPT2&, const int* tokens, int64_t n) = nullptr;
    const float* (*decode)(GPT2&, int token, int64_t position) = nullptr;
    bool needs_whole_gradients = false;  // its forward pass writes that of wte, which then is not made in pieces
    const Backend* backend = nullptr;    // what its device provides

    // The weights of a bucket, where it is seen whole.
    template <class floatX>
    floatX* whole_weights(int64_t bucket) {
        if (borrowed && bucket == layout.config.L) return (floatX*)borrowed;
        return (floatX*)params + weight_places.whole(layout, bucket);
    }
    // A tensor of the parameters, of one layer; an activation in floatX, and one in fp32; and the
    // window of a layer's attention.
    template <class floatX>
    floatX* param(int tensor, int64_t layer = 0) {
        if (!trains(layout.config, tensor, layer)) return (floatX*)params + frozen_at(tensor, layer);
        return whole_weights<floatX>(layout.bucket_of(tensor, layer)) + layout.offset_in_bucket(tensor, layer);
    }
    template <class floatX>
    floatX* act(int a, int64_t layer = 0) {
        return (floatX*)(acts + activations.offset(a, layer));
    }
    int64_t window(int64_t layer) const { return layout.config.window.of_layer(layer); }
    float* act32(int a, int64_t layer = 0) { return act<float>(a, layer); }
    int* ints(int a) { return act<int>(a); }

    // Where a tensor lies in params that does not train: behind the buckets, or what is there of
    // them.
    int64_t frozen_at(int tensor, int64_t layer) const {
        return weight_places.elems(layout) + layout.offset(tensor, layer) - layout.total_elems();
    }
    // Where the gradient of a tensor of one layer begins in its memory, in elements.
    int64_t gradient_at(int tensor, int64_t layer = 0) const {
        return gradient_places.whole(layout, layout.bucket_of(tensor, layer)) + layout.offset_in_bucket(tensor, layer);
    }
    // Whether a micro-batch adds to the gradients of those before it, else it writes its own; and
    // whether the processes sum them at once. Sharded gradients are summed over processes first.
    bool adds(const Batch& batch) const { return batch.micro > 0 && !gradient_places.sharded; }
    bool sends(const Batch& batch) const { return batch.last || gradient_places.sharded; }
};

// The parameters and activations of one layer, by name: const auto [param, act, act32] =
// of_layer<floatX>(model, l).
template <class floatX>
auto of_layer(GPT2& model, int64_t layer) {
    return std::make_tuple([&model, layer](int tensor) { return model.param<floatX>(tensor, layer); },
                           [&model, layer](int a) { return model.act<floatX>(a, layer); },
                           [&model, layer](int a) { return model.act32(a, layer); });
}

// What a process keeps of gradients that it sends compressed: elements of CompressedGradients.
inline int64_t residual_elems(const GPT2& model) {
    return model.compressed.kind == NOT_COMPRESSED ? 0 : model.layout.total_elems();
}
inline int64_t sum_residual_elems(const GPT2& model) {
    return model.slice.parts > 1 ? 0 : residual_elems(model) / model.layout.processes;
}
// Of w, and of n, of outer steps.
inline int64_t outer_elems(const GPT2& model) {
    return model.apart && !model.outer.is_mean() ? model.layout.total_elems() / model.layout.processes : 0;
}
// Of the average of the weights.
inline int64_t average_elems(const GPT2& model) {
    return model.averages ? model.layout.total_elems() / model.layout.processes : 0;
}
// Allocates them, zeroed, by take(bytes).
template <class Take>
void allocate_messages(GPT2& model, Take take) {
    CompressedGradients& c = model.compressed;
    if (const int64_t bytes = outer_elems(model) * 4)
        model.outer_weights = (float*)take(bytes), model.outer_momentum = (float*)take(bytes);
    if (const int64_t bytes = average_elems(model) * 4) model.average = (float*)take(bytes);
    if (c.kind == NOT_COMPRESSED) return;
    const int64_t bytes = bucket_code_bytes(c.kind, model.layout);
    c.residual = (float*)take(residual_elems(model) * 4);
    c.sent = (char*)take(bytes), c.received = (char*)take(bytes);
    if (model.slice.parts > 1) return;
    c.sum_residual = (float*)take(sum_residual_elems(model) * 4);
    c.sums = (char*)take(bytes);
}

// v of a slice of a bucket, where gradients travel in 1 bit, and v stays as it is
// (compress/gradient_codes.h); null where they do not.
inline const float* frozen_v(const GPT2& model, int64_t slice, int64_t bucket) {
    if (model.compressed.kind != IN_1_BIT) return nullptr;
    const int64_t at = model.slice.state_begin(model.layout, bucket);
    return (const float*)model.v + at + (model.slice.parts > 1 ? 0 : slice * model.layout.slice_elems(bucket));
}

// What layer l reads from the residual stream.
template <class floatX>
floatX* layer_input(GPT2& model, int64_t l) {
    return l == 0 ? model.act<floatX>(ENCODED) : model.act<floatX>(RESIDUAL3, l - 1);
}

// What the services need of a device. cpu/backend.h and cuda/backend.cuh have a table of these
// functions each.
struct PlanRow;
struct PlanDevice;
struct DetectedDevice;
struct DeviceReading;
struct Backend {
    const char* kernels;  // whose kernels compute; the same for all processes of a run

    // ---- memory
    // Settles the number of threads and all sizes that depend on the device, in `sizes` and in the
    // model. Exit 2 if the device cannot compute the model. Allocates nothing.
    void (*settle)(GPT2& model, Sizes& sizes, const Options& options);
    // The memory that the model would take, row by row; its sum is what allocate() allocates.
    std::vector<PlanRow> (*plan_rows)(const GPT2& model, const Sizes& sizes, const Options& options);
    // What the process takes of the host's memory besides, where the model lies on a GPU.
    std::vector<PlanRow> (*host_plan_rows)(const GPT2& model, const Sizes& sizes, const Options& options);
    // Allocates parameters, optimizer state, activations and gradients; exit 1 if memory is too
    // small.
    void (*allocate)(GPT2& model, const Sizes& sizes, const Options& options);
    // Bytes of the model's memory as they are, to the host or from it.
    void (*copy_out)(GPT2& model, void* to, const void* from, int64_t bytes);
    void (*copy_in)(GPT2& model, void* to, const void* from, int64_t bytes);

    // With --sync-every: the processes of a run meet; all call it.
    void (*meet)(GPT2& model, Meeting meeting);
    // With --ema: the average of the weights (optim/average.h); all processes of a run call it.
    void (*average)(GPT2& model, Averaging what, float share);
    // With --prune, once weights are pruned: their state becomes 0.
    void (*clear_pruned)(GPT2& model);

    // ---- what the log says
    // The device of this machine, as far as it is known; for --plan.
    PlanDevice (*this_device)(const GPT2& model, const Options& options);
    // What computes, in which precision, with which kernels (plan/device_reading.h).
    DetectedDevice (*detected)(const GPT2& model);
    // The peak of the device in FLOP/s. 0 if it is unknown, or less than a step has reached.
    double (*peak_flops)(GPT2& model, double reached);
    // The largest amount of the device's memory that this process has taken so far.
    int64_t (*peak_bytes)(const GPT2& model);
    // Clocks, power and the like for -lg; empty if there is nothing to say.
    std::string (*status)(const GPT2& model);
    // What the device told about itself during this step.
    DeviceReading (*reading)(const GPT2& model);
    // Names what a trace shows beside the program: threads or streams (trace.h).
    void (*trace_tracks)(const GPT2& model);
};
