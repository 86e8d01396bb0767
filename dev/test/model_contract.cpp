// The smallest trainer that fulfils the contract of llmc/run/model_contract.h: declarations alone.
// model_contract.sh compiles it whole, and with lines taken out or changed.
#include "llmc/run/model_contract.h"

struct Model {
    typedef bf16 Element;
    ParameterLayout layout;
    Sizes sizes;
    int64_t micro_steps;
    ActivationLayout activations;
    BucketSlice slice;
    Optimizer optimizer;
    void *m, *v;
    float *master, *factors;
    std::function<void()> gradients_complete;
    PartClock parts;
    bf16* param(int tensor, int64_t layer);
    bf16* act(int a, int64_t layer);
    float* act32(int a, int64_t layer);
};

void settle_device(Model&, Sizes&, const Options&);
std::vector<PlanRow> plan_rows(const Sizes&, const Options&, Model*);
std::vector<PlanRow> host_plan_rows(const Sizes&, const Options&, Model*);
PlanDevice this_device(Model&, const Options&);
void allocate(Model&, const Sizes&, const Options&);
template <class T>
const float* to_host(Model&, const T*, int64_t);
template <class T>
void to_device(Model&, T*, const float*, int64_t);
void copy_out(Model&, void*, const void*, int64_t);
void copy_in(Model&, void*, const void*, int64_t);
const float* gradient_data(Model&, int, int64_t, int64_t, int64_t);
void micro_step(Model&, const int*, const int*, int64_t, int64_t, float, int64_t);
StepResult update(Model&, const UpdateRule&, const std::function<void()>&);
void evaluate(Model&, const int*, const int*, int64_t, int64_t, float*);
const float* prefill(Model&, const int*, int64_t);
const float* decode(Model&, int, int64_t);
double peak_flops(Model&, double);
void trace_device(Model&);
const char* kernels_name(Model&);
DetectedDevice detected(Model&);
std::string device_status(Model&);
int64_t peak_bytes(Model&);
DeviceReading device_reading(Model&);

static_assert(sizeof(ModelContract<Model>) > 0, "");
