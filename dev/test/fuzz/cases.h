// Many cases, on all cores. A process that breaks a promise ends; what it was doing is reported,
// and another one goes on with the rest.
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <climits>
#include "dev/test/fuzz/parsers.h"

// Of one parser: what the programs write themselves, and the files of its corpus.
struct Inputs {
    std::vector<std::string> all;
    size_t valid = 0;  // so many come from the programs
};
inline std::vector<Inputs> all_inputs() {
    std::vector<Inputs> inputs(NUM_PARSERS);
    for (size_t p = 0; p < NUM_PARSERS; p++) {
        empty_scratch();
        inputs[p].all = PARSERS[p].seeds();
        inputs[p].valid = inputs[p].all.size();
        for (const std::string& path : glob_files(std::string("dev/test/fuzz/corpus/") + PARSERS[p].name + "/*"))
            inputs[p].all.push_back(content_of(path));
    }
    return inputs;
}
// The cases of a parser begin with its inputs as they are.
inline std::string input_of(const std::vector<Inputs>& inputs, uint64_t seed, size_t p, size_t number) {
    const std::vector<std::string>& known = inputs[p].all;
    if (number < known.size()) return known[number];
    Draw draw(seed, p, number);
    std::string input = draw.pick(known);
    change(input, PARSERS[p], draw);
    return input;
}

struct Case {
    size_t parser, number;
};
// What a process tells the one that started it, in memory that both see.
struct Tally {
    size_t at;     // the index of the case under way
    double begun;  // when it began
    size_t ended[NUM_PARSERS][3];
    size_t refused_valid;  // valid inputs that were refused
};
constexpr double LONGEST_S = 20;

// Runs every jobs-th case from the first.
inline void run_share(const std::vector<Inputs>& inputs, const std::vector<Case>& cases, uint64_t seed, size_t first,
                      size_t jobs, Tally& progress) {
    make_scratch();
    watch_allocations();
    for (size_t i = first; i < cases.size(); i += jobs) {
        const Case c = cases[i];
        progress.at = i, progress.begun = now_seconds();
        const int status = run_case(PARSERS[c.parser], input_of(inputs, seed, c.parser, c.number));
        progress.ended[c.parser][status]++;
        progress.refused_valid += status != 0 && c.number < inputs[c.parser].valid;
        if (status != 0 && c.number < inputs[c.parser].valid)
            dprintf(2, "%s refuses its valid input %zu\n", PARSERS[c.parser].name, c.number);
    }
    remove_scratch();
}

inline std::string name_of(const Case& c) { return format("%s-%d", PARSERS[c.parser].name, c.number); }

// Keeps the input of a case that broke a promise, and says how it ended.
inline void report(const std::vector<Inputs>& inputs, const Case& c, uint64_t seed, const std::string& how,
                   const std::string& said) {
    make_folder("build/fuzz");
    const std::string path = "build/fuzz/" + name_of(c), bytes = input_of(inputs, seed, c.parser, c.number);
    FileWriter file(path);
    file.write(bytes.data(), bytes.size());
    file.commit();
    printf("FAILED %s with seed %llu %s; its input: %s\n%s\n", name_of(c).c_str(), (unsigned long long)seed,
           how.c_str(), path.c_str(), said.substr(0, 3000).c_str());
}

// One worker, its log, and where it began.
struct Worker {
    pid_t pid = -1;
    std::string log;
    size_t next;  // the index of its next case
};

// Runs all cases, on so many processes. Returns how many broke a promise.
inline size_t run_cases(const std::vector<Inputs>& inputs, const std::vector<Case>& cases, uint64_t seed, size_t jobs,
                        Tally* progress) {
    size_t failed = 0, running = 0;
    std::vector<Worker> workers(jobs);
    auto begin = [&](size_t w) {
        if (workers[w].next >= cases.size()) return;
        fflush(stdout);
        progress[w].begun = now_seconds(), progress[w].at = workers[w].next;
        running++;
        if ((workers[w].pid = fork()) != 0) return;
        const int log = open(workers[w].log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(log, 2);
        run_share(inputs, cases, seed, workers[w].next, jobs, progress[w]);
        _exit(0);
    };
    for (size_t w = 0; w < jobs; w++) workers[w].log = scratch + format(".log%d", w), workers[w].next = w, begin(w);
    while (running > 0) {
        usleep(20000);
        for (size_t w = 0; w < jobs; w++) {
            Worker& worker = workers[w];
            int status = 0;
            if (worker.pid < 0) continue;
            const bool late = now_seconds() - progress[w].begun > LONGEST_S;
            if (late) kill(worker.pid, SIGKILL);
            if (waitpid(worker.pid, &status, late ? 0 : WNOHANG) == 0) continue;
            worker.pid = -1, running--;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            failed++;
            report(inputs, cases[progress[w].at], seed, late ? format("takes more than %.0f s", LONGEST_S) : "",
                   content_of(worker.log));
            worker.next = progress[w].at + jobs;
            begin(w);
        }
    }
    for (const Worker& worker : workers) unlink(worker.log.c_str());
    return failed;
}

// Every parser must have accepted some inputs, and many must have been refused, or the cases test
// nothing.
inline bool summarize(const Tally* tallies, size_t jobs, size_t failed, bool all) {
    bool sensible = true;
    size_t accepted = 0, refused = 0;
    for (size_t p = 0; p < NUM_PARSERS; p++) {
        size_t ended[3] = {};
        for (size_t w = 0; w < jobs; w++)
            for (int status = 0; status < 3; status++) ended[status] += tallies[w].ended[p][status];
        const size_t bad = ended[1] + ended[2];
        if (ended[0] + bad) printf("%-10s %6zu accepted %6zu refused\n", PARSERS[p].name, ended[0], bad);
        accepted += ended[0], refused += bad;
        sensible = sensible && (!all || ended[0] > 0);
    }
    for (size_t w = 0; w < jobs; w++) sensible = sensible && tallies[w].refused_valid == 0;
    printf("%zu cases: %zu accepted, %zu refused, %zu broke a promise\n", accepted + refused + failed, accepted,
           refused, failed);
    return sensible && failed == 0 && (!all || refused > accepted / 4);
}

// Parsers that each break a promise, which must be seen.
inline std::vector<std::string> none() { return {}; }
inline const Parser PLANTED[] = {
    {"two sentences", BINARY, none, [](const std::string&) { print_error("one"), runtime_failure("two"); }},
    {"no sentence", BINARY, none, [](const std::string&) { throw Ended{1}; }},
    {"other words", BINARY, none, [](const std::string&) { fprintf(stderr, "hello\n"); }},
    {"another status", BINARY, none, [](const std::string&) { print_error("three"), throw Ended{3}; }},
    {"much memory", BINARY, none, [](const std::string&) { std::string(20 << 20, 'x').swap(scratch); }},
    {"a bad read", BINARY, none, [](const std::string& s) { expect(s.data()[s.size() + 1] >= 0, "never"); }},
    {"an overflow", BINARY, none,
     [](const std::string& s) {
         for (int n = INT_MAX - 9, i = 0; i < (int)s.size(); i++) expect(n++ != 5, "never");
     }},
};
inline bool sees_planted() {
    for (const Parser& parser : PLANTED) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            watch_allocations();
            dup2(open("/dev/null", O_WRONLY), 2);
            run_case(parser, "a text longer than what a string holds in itself");
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status == 0) return printf("FAILED to see what is wrong with a parser: %s\n", parser.name), false;
    }
    return true;
}

inline int fuzz(size_t cases_wanted, uint64_t seed, const std::string& only) {
    const std::vector<Inputs> inputs = all_inputs();
    std::vector<Case> cases;
    const size_t dash = only.find('-');
    const size_t chosen = only.empty() ? NUM_PARSERS : parser_of(only.substr(0, dash));
    if (dash != only.npos) cases.push_back({chosen, (size_t)atoll(only.c_str() + dash + 1)});
    else
        for (size_t i = 0; i < cases_wanted; i++)
            cases.push_back(only.empty() ? Case{i % NUM_PARSERS, i / NUM_PARSERS} : Case{chosen, i});
    const size_t jobs = std::min<size_t>(cases.size(), std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
    Tally* tallies =
        (Tally*)mmap(nullptr, jobs * sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!sees_planted()) return 1;
    const size_t failed = run_cases(inputs, cases, seed, jobs, tallies);
    return summarize(tallies, jobs, failed, only.empty()) ? 0 : 1;
}
