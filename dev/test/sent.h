// What a process sends in traced steps, beside what the plan says.
#pragma once
#include <cstring>
#include "dev/test/several.h"

// What rank 0 has sent in the steps of a time line (--trace): the bytes of all collectives, and in
// the order in which they ended the backward passes of layers, and the collectives on buckets.
struct Sent {
    std::string order;
    double bytes = 0;
};
inline Sent sent_in_trace(const std::string& json) {
    Sent sent;
    for (size_t at = 0, end; (end = json.find('\n', at)) != json.npos; at = end + 1) {
        const std::string line = json.substr(at, end - at);
        if (!contains(line, "\"pid\":0,\"tid\":0")) continue;
        const size_t bytes = line.find("\"sent bytes\":");
        if (bytes != line.npos) sent.bytes += atof(line.c_str() + bytes + strlen("\"sent bytes\":"));
        int bucket;
        char name[32];
        if (sscanf(line.c_str(), "{\"name\":\"%31[a-z_] %d\"", name, &bucket) != 2) continue;
        if (!strcmp(name, "layer_backward")) sent.order += format("backward %d, ", bucket);
        if (bytes != line.npos) sent.order += format("%s %d, ", name, bucket);
    }
    return sent;
}

// A traced step of n processes; whether it has sent as many bytes as --plan says.
inline bool sends_as_planned(const std::string& program, int n, const std::string& flags, Sent& sent, int step = 1) {
    const std::string file = dir("trace.json");
    unlink(file.c_str());
    const bool ended = passed(
        run(several(program, n, flags + format(" -x %d --trace-steps %d:%d --trace ", step, step, step) + file)));
    sent = sent_in_trace(read_whole(file));
    const std::string plan = run(tiny_run(program, format("-b 1 -d 192 --plan -pn %d %s", n, flags))).out;
    const double planned = atof(plan.c_str() + plan.find("wire a step: ") + 13);
    if (sent.bytes != planned) printf("    %.0f bytes sent, %.0f planned\n", sent.bytes, planned);
    return ended && sent.bytes > 0 && sent.bytes == planned;
}
