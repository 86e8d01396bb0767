// --window: a number of positions, for all layers or for every other one (gpt2/window.h).
#pragma once
#include "llmc/base/parse.h"
#include "llmc/gpt2/config.h"
#include "llmc/options/options.h"

inline std::string window_text(const AttentionWindow& w) {
    return format("%d%s", w.positions, w.alternate ? ",alternate" : "");
}
// The window of attention: of --window, else of the model file. Exit 2 if a run to resume has
// another.
inline void settle_window(Options& o, GPT2Config& config, bool resumed) {
    const AttentionWindow saved = config.window;
    if (!o.window.empty()) {
        const size_t comma = std::min(o.window.find(','), o.window.size());
        AttentionWindow& w = config.window;
        w.alternate = o.window.substr(comma) == ",alternate";
        const bool good = parse_whole(o.window.substr(0, comma), w.positions) && w.positions >= w.alternate &&
                          w.positions <= MOST_WINDOW && (w.alternate || comma == o.window.size());
        if (!good)
            usage_error(
                "--window %s is not accepted; accepted: 0 = off, 1 to %d positions for all layers, or 1 to "
                "%d,alternate "
                "for layers 1, 3, 5, ...",
                o.window, MOST_WINDOW, MOST_WINDOW);
        if (resumed && w != saved)
            usage_error(
                "--window %s differs from the run to resume in %s, which has %s; %s is accepted, or -y 0 --overwrite 1",
                o.window, o.out_dir, window_text(saved), window_text(saved));
    }
    if (config.window.positions > 0) o.window = window_text(config.window);
}
