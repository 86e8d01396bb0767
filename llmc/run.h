// What belongs to one run: its options, model, data, log, and where it is.
#pragma once
#include <csignal>
#include "llmc/plan.h"
#include "llmc/checkpoint.h"
#include "llmc/dataloader.h"
#include "llmc/hellaswag.h"
#include "llmc/logger.h"
#include "llmc/tokenizer.h"

// SIGINT, SIGTERM and SIGUSR1 ask the run to finish its step, save and end. The second one of a kind acts as if nobody had asked.
inline volatile sig_atomic_t stop_requested = 0;
inline void catch_signals() {
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_requested = 1; };
    action.sa_flags = SA_RESTART | SA_RESETHAND;
    for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
    ::signal(SIGXFSZ, SIG_IGN);  // a file over the limit is an error of write(), reported as one
    ::signal(SIGPIPE, SIG_IGN);
}

// True if work in the middle of a step may be dropped at once: with several processes all must do the same, and agree between steps.
inline bool stop_alone() { return stop_requested && comm.processes == 1; }

template <class Model>
struct Run {
    Options options;
    Model model;
    Logger logger;
    Tokenizer tokenizer;
    DataLoader train_data, val_data;
    StateHeader state;
    std::vector<HellaSwagExample> hellaswag;
    std::vector<int> prompt;
    std::vector<int> x, y;
    std::vector<float> losses;
    int64_t B, T, micro_steps, max_steps, saved_step = -1, first_step = 0;
    double started;
    int64_t pace_step = 0;                                        // time left is reckoned from here on
    double pace_time = 0;
};
