// What belongs to one run: its options, model, data and log, and how far it is.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include "llmc/adapt/prune.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/hellaswag.h"
#include "llmc/base/logger.h"
#include "llmc/optim/noise_scale.h"
#include "llmc/options/options.h"
#include "llmc/comm/comm.h"
#include "llmc/plan/plan_device.h"
#include "llmc/run/run_files.h"
#include "llmc/run/stop.h"
#include "llmc/run/tensor_sums.h"
#include "llmc/data/tokenizer.h"
#include "llmc/options/warmup.h"

// The steps to trace, counted from 1 as on stdout (trace_file.h).
struct TraceSteps {
    int64_t first = 0, last = -1;
};

// A micro-batch that was loaded while the device was computing.
struct BatchAhead {
    int64_t first_window = -1;  // -1: there is none
    std::vector<int> x, y;
};

// What a step that is being computed needs until it is logged.
struct StepInWork {
    std::optional<Range> range;          // in the trace
    double begin = 0;                    // by now_seconds()
    double tokens = 0;                   // of the step that count
    float dloss = 0;                     // the gradient of each position's loss
    double rate = 0;                     // the learning rate
    BeforeUpdate before;                 // for tensors.csv
    const StateHeader* after = nullptr;  // while the step is logged: what the run's state will be
};

struct Run {
    Options options;
    GPT2 model;
    Logger logger;
    RunFiles files;  // their paths are set on rank 0
    Tokenizer tokenizer;
    DataLoader train_data, val_data;
    StateHeader state;
    FolderLock lock;                           // on the out dir; held by rank 0
    std::unique_ptr<FileReader> model_file;    // the weights' file, opened once and then read
    std::unique_ptr<FileReader> adapter_file;  // that of --adapter, or of the checkpoint of a run with --lora
    std::unique_ptr<FileReader> teacher_file;  // that of --teacher, until its weights are read
    std::map<int64_t, bool> whole;  // by step: whether a checkpoint that this run has saved or verified is whole
    std::vector<HellaSwagExample> hellaswag;
    std::vector<int> prompt;
    int64_t trained_positions = 0;  // of a model that only generates; 0: not known
    std::vector<int> x, y;          // (B,T): inputs and targets of a micro-batch
    BatchAhead ahead;
    std::vector<float> losses;  // (B,T), of an evaluation
    int64_t B, T, max_steps;
    int64_t resumed_step = -1;                // of the checkpoint that the run goes on from; -1: it begins at step 0
    int64_t step_windows = 0;                 // of this step (warmup.h),
    int64_t cuts = 1;                         // and the sequences that each is cut into
    int64_t first_tokens = 0;                 // that count in this rank's first micro-batch of the step
    int64_t first_step = 0, saved_step = -1;  // where this program began; its last checkpoint
    int64_t met_step = -1;                    // with --sync-every: when the processes met last
    bool random_weights = false;              // the weights were drawn, not read from a file
    double started;                           // when the first step began
    double seconds_before = 0;                // how long the programs took that this one continues
    BestLoss best;                            // of the validations in evals.jsonl
    int64_t validated_step = -1;              // of the last validation of this program
    double step_seconds = 0;                  // of all steps of this program
    NoiseMeans noise_means;                   // over the lines of metrics.csv
    double evaluation_seconds = 0;            // before this step
    TraceSteps traced;
    double trace_start = 0;    // when the first of them began
    PlanDevice traced_device;  // whose roofline their kernels are compared with
    int64_t pace_step = 0;     // the time left is estimated from this step on,
    double pace_time = 0;      // which began then
    Pruning pruning;
    StepInWork step;
    CommSession session;  // last: the processes part before the rest of the run is gone
};

// The windows of a step, and of all steps before it, by --batch-warmup.
inline int64_t windows_of_step(const Run& run, int64_t step) {
    return windows_of_step(step, run.options.batch_warmup, run.options.total_batch_size / run.T);
}
inline int64_t windows_before(const Run& run, int64_t step) {
    return windows_before(step, run.options.batch_warmup, run.options.total_batch_size / run.T);
}

// With --sync-every: the weights of all processes become one, after so many steps.
inline void meet(Run& run, int64_t step) {
    if (run.met_step != step) run.model.backend->meet(run.model, MEET_WEIGHTS);
    run.met_step = step;
}

inline DataSize data_size(const Run& run) { return {run.train_data.total_tokens, run.train_data.total_windows}; }

// If there is a problem with the data, prints it and sets stop.failed: the run is saved and ends
// when all processes know. Until then they compute on what their rows hold, and no update follows.
inline void fail_on(const std::string& problem) {
    if (problem.empty()) return;
    print_error(problem);
    stop.failed = true;
}

// Loads window w into row b of run.x and run.y.
inline void load_row(Run& run, DataLoader& data, int64_t w, int64_t b) {
    if (!stop.failed) fail_on(try_load_window(data, w, &run.x[b * run.T], &run.y[b * run.T]));
}
