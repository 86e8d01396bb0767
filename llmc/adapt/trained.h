// --train: which tensors of a model train; the others keep the values that they have.
//
// A tensor that does not train has no gradient, no optimizer state and no traffic between
// processes, and counts neither for the norm of the gradient nor for weight decay: the layout of
// the parameters leaves it out of the buckets (gpt2/tensors.h). The backward pass ends above the
// layers below which nothing trains.
#pragma once
#include "llmc/base/checksum.h"
#include "llmc/base/parse.h"
#include "llmc/base/text.h"
#include "llmc/gpt2/tensors.h"
#include "llmc/optim/optimizers.h"
#include "llmc/options/options.h"

// What --train can name: sets of tensors, a bit for each.
struct TrainableSet {
    const char* name;
    uint32_t tensors;
};
constexpr uint32_t bits_of() { return 0; }
template <class... Others>
constexpr uint32_t bits_of(Tensor tensor, Others... others) {
    return 1u << tensor | bits_of(others...);
}
constexpr TrainableSet TRAINABLE_SETS[] = {
    {"wte", bits_of(WTE)},
    {"wpe", bits_of(WPE)},
    {"ln", bits_of(LN1W, LN1B, LN2W, LN2B)},
    {"bias", bits_of(LN1B, QKVB, ATTPROJB, LN2B, FCB, FCPROJB)},
    {"qkv", bits_of(QKVW, QKVB)},
    {"attproj", bits_of(ATTPROJW, ATTPROJB)},
    {"fc", bits_of(FCW, FCB)},
    {"fcproj", bits_of(FCPROJW, FCPROJB)},
    {"lnf", bits_of(LNFW, LNFB)},
    {"head", bits_of(WTE, LNFW, LNFB)},  // wte is also the matrix of the classifier
    {"layers", bits_of(LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB)},
};
constexpr uint32_t OUTSIDE_LAYERS = bits_of(WTE, WPE, LNFW, LNFB), ALL_OF_GPT2 = (1u << NUM_TENSORS) - 1;

// Adds to `trained` (GPT2Config) what one item of --train names: "ln", "qkv=3", "layers=8-11".
inline void add_trained(std::vector<uint32_t>& trained, const std::string& item, const GPT2Config& c) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals), range = equals == item.npos ? "" : item.substr(equals + 1);
    std::string names;
    const TrainableSet* found = nullptr;
    for (const TrainableSet& set : TRAINABLE_SETS) {
        if (name == set.name) found = &set;
        names += (names.empty() ? "" : ", ") + std::string(set.name);
    }
    if (!found) usage_error("--train has no tensors called '%s'; accepted: all, or some of %s", name, names);
    int64_t first = 0, last = c.L - 1;
    if (equals != item.npos) {
        const size_t dash = range.find('-');
        const std::string from = range.substr(0, dash), to = dash == range.npos ? from : range.substr(dash + 1);
        const bool numbers = parse_whole(from, first) && parse_whole(to, last);
        if (!numbers || first < 0 || last < first || last >= c.L)
            usage_error("--train %s: '%s' are no layers of this model; N or A-B from 0 to %d are accepted", item, range,
                        c.L - 1);
        if (found->tensors & OUTSIDE_LAYERS)
            usage_error("--train %s: %s is outside the layers; without '=%s' it is accepted", item, name, range);
    }
    for (int64_t l = first; l <= last; l++) trained[l] |= found->tensors & ~OUTSIDE_LAYERS;
    trained[c.L] |= found->tensors & OUTSIDE_LAYERS;
}

// GPT2Config::trained, from --train; empty if everything trains.
inline std::vector<uint32_t> trained_of(const std::string& text, const GPT2Config& c) {
    if (text == "all") return {};
    std::vector<uint32_t> trained(c.L + 1);
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        add_trained(trained, text.substr(begin, end - begin), c);
        begin = end + 1;
    }
    bool all = true;
    for (int64_t b = 0; b <= c.L; b++)
        all = all && trained[b] == (b < c.L ? ALL_OF_GPT2 & ~OUTSIDE_LAYERS : OUTSIDE_LAYERS);
    return all ? std::vector<uint32_t>() : trained;
}

// By which a checkpoint knows what its run trains; 0: everything.
inline uint64_t trained_identity(const GPT2Config& c) {
    if (c.trained.empty()) return 0;
    Checksum sum;
    const int64_t lora[] = {c.lora.rank, c.lora.on, (int64_t)(c.lora.alpha * 65536)};
    sum.add(c.trained.data(), c.trained.size() * sizeof(uint32_t));
    sum.add(lora, sizeof(lora));
    if (c.lora.beside) sum.add(&c.lora.beside, sizeof(c.lora.beside));
    return sum.value() | 1;
}

// Exit 2 if `flag` leaves tensors or weights out, and other flags ask for what does not go with
// that, for this reason.
inline void check_partial_training(const std::string& flag, const Options& o, const char* reason) {
    const auto refuse = [&](const std::string& other, const char* accepted) {
        usage_error("%s with %s, %s; %s", flag, other, reason, accepted);
    };
    if (o.compress_gradients != "none") refuse("--compress-gradients " + o.compress_gradients, "none is accepted");
    if (o.sync_every > 0) refuse(format("--sync-every %d", o.sync_every), "0 is accepted");
    if (o.offload != "none") refuse("--offload " + o.offload, "none is accepted");
    if (o.noise_scale) refuse("--noise-scale 1", "0 is accepted");
    if (o.log_tensors > 0) refuse(format("--log-tensors %d", o.log_tensors), "0 is accepted");
}

// Exit 2 if `flag` leaves tensors out, and other flags need all of them, or (slices of two layers
// at a time, blocks of 8 bits, factors) layers that are alike.
inline void check_tensors_left_out(const std::string& flag, const Options& o, const GPT2Config& config) {
    check_partial_training(flag, o, "which needs gradients of all tensors");
    const Optimizer optimizer = find_optimizer(o.optimizer.c_str());
    const auto refuse = [&](const std::string& other, const char* accepted) {
        usage_error("%s with %s, for which the same tensors of all layers must train; %s", flag, other, accepted);
    };
    if (optimizer == MUON)
        usage_error("%s with --optimizer muon, which is for the matrices of layers; others are accepted", flag);
    if (parameter_layout(config, 1).layers_alike()) return;
    if (o.zero_stage > 1) refuse(format("-z %d", o.zero_stage), "-z 0 and -z 1 are accepted");
    if (!OPTIMIZERS[optimizer].keeps_by_element())
        refuse("--optimizer " + o.optimizer, "adamw, adam, sgd and others that keep fp32 are accepted");
}
