// What belongs to one run: its options, model, data, log, and where it is.
#pragma once
#include "llmc/plan.h"
#include "llmc/checkpoint.h"
#include "llmc/dataloader.h"
#include "llmc/hellaswag.h"
#include "llmc/logger.h"
#include "llmc/options.h"
#include "llmc/stop.h"
#include "llmc/tokenizer.h"

template <class Model>
struct Run {
    Options options;
    Model model;
    Logger logger;
    Tokenizer tokenizer;
    DataLoader train_data, val_data;
    StateHeader state;
    FolderLock lock;                         // rank 0's, on the out dir
    std::unique_ptr<FileReader> model_file;  // what the weights are read from, opened once
    std::map<int64_t, bool> whole;           // by step: the checkpoints that this run has saved or verified
    std::set<int64_t> replaced;              // steps of an earlier run's checkpoints, which go after the first save
    std::vector<HellaSwagExample> hellaswag;
    std::vector<int> prompt;
    std::vector<int> x, y;
    std::vector<float> losses;
    int64_t B, T, micro_steps, max_steps, saved_step = -1, first_step = 0;
    bool random_weights = false;  // the run began with them, not with those of a file
    double started;
    int64_t pace_step = 0;  // time left is reckoned from here on
    double pace_time = 0;
};
