// What the table of flags says of one of them (option_table.h), and the groups that flags are in.
#pragma once
#include <string>
#include "llmc/options/option_values.h"

// The groups of flags in --help, as option_table() numbers them.
constexpr const char* OPTION_GROUPS[] = {"data",
                                         "model",
                                         "training",
                                         "learning rate",
                                         "evaluation and samples",
                                         "checkpoints and logs",
                                         "speed and memory",
                                         "several processes",
                                         "about the program"};
constexpr int NUM_OPTION_GROUPS = sizeof(OPTION_GROUPS) / sizeof(*OPTION_GROUPS), EVERYDAY = 16;

struct OptionRow {
    int group;                           // one of OPTION_GROUPS; | EVERYDAY if --help without `all` shows it
    const char *short_name, *long_name;  // "-b", or "" for none; "--batch-size"
    std::string Options::*text;          // where the value goes: exactly one of text, whole, real
    int64_t Options::*whole;
    double Options::*real;
    double lowest, highest;                     // of whole and real; lowest also the fewest bytes of text
    const char *accepted, *fallback, *meaning;  // for --help; text: a list "a, b" in accepted is all it accepts
    // Whether lowest and highest themselves are accepted. A value must always be finite.
    enum Bounds { CLOSED, ABOVE_LOWEST, BELOW_HIGHEST, ABOVE_LOWEST_CLOSED } bounds = CLOSED;
    bool takes_value = true;
    bool fp32 = false;  // used as fp32: the value must be accepted after rounding, too
};
