// What surrounds the steps of a run, as services that a trainer's train() calls.
// They know the model by struct GPT2 alone (model/model.h), and are compiled once, in services.cpp.
#pragma once
#include "llmc/optim/update_settings.h"
#include "llmc/run/run.h"

// ---- before the steps

// The flags in force: those of the command line; for the others, with -y 1, those of the run to
// resume; else those of --config; else the defaults. Exit 2 for a mistake.
Options options_of_command(int argc, char** argv);
// Begins a run with run.options: the processes meet; flags, model and data are settled and checked;
// memory is allocated; weights are loaded; the out dir is opened. False if nothing is left to do:
// --help, --version and --plan have printed, or the run to resume was at its end. run.model has
// what the trainer provides.
bool begin_run(Run& run);

// ---- between steps

// Validation loss, HellaSwag and a sample, where they are due.
void evaluate_when_due(Run& run);
// Whether the last step is done, or a signal, --max-minutes or a failure ends the run.
bool run_is_over(Run& run);
// Saves a run that was stopped, sums up one that was not; the exit status of the program.
int end_run(Run& run);
// Writes a checkpoint, where it is due.
void save_when_due(Run& run);

// ---- in a step

// Settles which windows the step takes, how many of their tokens count, and how many micro-batches
// they make: model.micro_steps.
void begin_step(Run& run);
// This process's micro-batch number `micro` of the step; on the host, until the next call.
Batch next_batch(Run& run, int64_t micro);
// Whether a process could not load its tokens: then the step has no update, and the run is over.
bool data_failed(Run& run);
// What the update needs beside the gradients: learning rate, limits, which number it has.
UpdateSettings begin_update(Run& run);
// Loads the first micro-batch of the next step: its other micro-batches are loaded while the device
// computes the ones before them, but this one would keep it waiting. If that fails, the next step
// tries again, and says so.
void load_ahead(Run& run);
// With --sync-every: the processes average their weights, where it is due.
void meet_when_due(Run& run);
// With --ema: the weights after an update join their average.
void average_weights(Run& run, const StepResult& result);
// Logs the step and counts it. Ends the run (exit 1) if loss or norm is not finite and no lower
// loss scale may help, after it has said where that began: micro_step(micro) computes the gradients
// of a micro-batch again.
void end_step(Run& run, const UpdateSettings& settings, const StepResult& result,
              const std::function<void(int64_t micro)>& micro_step);
