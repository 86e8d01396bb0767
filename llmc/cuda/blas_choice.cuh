// Which of cuBLASLt's algorithms computes a kind of product. The library ranks them by a model of
// its own. Here the first eight are timed (blas_timing.cuh) when a kind first occurs on a kind of
// GPU, and the fastest is kept (llmc/base/kept_values.h) in the file `algorithms`: another
// algorithm may add in another order, so the same run has the same bits only as long as it has the
// same algorithms.
//
// One process at a time chooses; the others wait until its choice is in the file, so that all
// processes that see the file use the same algorithms. Where choices cannot be kept, nothing is
// timed: the library's first is used.
#pragma once
#include <sys/file.h>
#include "llmc/cuda/blas_timing.cuh"
#include "llmc/base/kept_values.h"

constexpr int BLAS_CANDIDATES = 8;
constexpr double BLAS_LOCK_S = 10;  // that a process waits for another's choice, at most once in a run

// Where choices are kept, and the first part of each key.
struct BlasChoices {
    std::string path;     // empty: nowhere
    std::string machine;  // name of the GPU and version of the library
    bool may_add = true;  // false once that has failed
};

// -------------------------------------------------------------------------------------------------
// the file

// An algorithm as text: the eight numbers in which the library describes it. They are valid for one
// version of the library.
inline std::string algorithm_text(const BlasAlgorithm& algorithm) {
    std::string text;
    for (const uint64_t word : algorithm.data) text += format(text.empty() ? "%016x" : " %016x", word);
    return text;
}
// False if the text is not exactly such numbers.
inline bool read_algorithm(BlasAlgorithm& algorithm, const std::string& text) {
    const char* p = text.c_str();
    for (uint64_t& word : algorithm.data) {
        char* end;
        word = strtoull(p, &end, 16);
        p = end;
    }
    return algorithm_text(algorithm) == text;
}

// The right to choose, as long as it lives: a lock on a file beside that of the choices. The system
// frees it when a process ends. The wait for it ends once found() is true: the process that has the
// lock may be choosing for its next product already.
struct ChoiceLock {
    bool held = false, others = false;  // others: another process has it
    template <class Found>
    ChoiceLock(const std::string& path, Found found) {
        fd = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        const double begin = now_seconds();
        while (fd >= 0 && !held) {
            held = flock(fd, LOCK_EX | LOCK_NB) == 0;
            others = !held && (errno == EWOULDBLOCK || errno == EINTR);
            if (!others || found() || now_seconds() - begin > BLAS_LOCK_S) break;
            usleep(5000);
        }
    }
    ChoiceLock(const ChoiceLock&) = delete;
    ~ChoiceLock() {
        if (fd >= 0) close(fd);
    }

private:
    int fd;
};

// -------------------------------------------------------------------------------------------------
// the choice

// Times the candidates and keeps the fastest, with a line about it on stderr. False if it cannot be
// kept.
template <class Run>
inline bool keep_fastest(BlasAlgorithm& fastest, const std::vector<BlasAlgorithm>& candidates, const char* path,
                         const std::string& key, const std::string& product, Run run, cudaStream_t stream) {
    if (!kept_value(path, key).empty())
        warning("%s: its entry for the product %s is no algorithm of this library; it is replaced", path, product);
    const std::vector<float> ms = time_algorithms(candidates, run, stream);
    const size_t best = std::min_element(ms.begin(), ms.end()) - ms.begin();
    fastest = candidates[best];
    if (std::isinf(ms[best])) return true;  // the library refuses them all, and what is refused is not kept
    if (!keep_value(path, key, algorithm_text(fastest))) return false;
    clear_the_way();
    fprintf(stderr, "product %s: algorithm %zu of %zu, %.4f ms; the first takes %.4f ms\n", product.c_str(), best + 1,
            candidates.size(), ms[best], ms[0]);
    return true;
}

// The algorithm kept for `product`, if accepted(algorithm) is true. Otherwise the fastest of the
// candidates, which is then kept; or the first, if that is not possible.
template <class Run, class Accepted>
inline BlasAlgorithm choose_among(const std::vector<BlasAlgorithm>& candidates, BlasChoices& choices,
                                  const std::string& product, Run run, Accepted accepted, cudaStream_t stream) {
    if (choices.path.empty() || candidates.size() < 2) return candidates[0];
    const char* const path = choices.path.c_str();
    const std::string key = choices.machine + ", " + product;
    BlasAlgorithm algorithm;
    const auto found = [&] { return read_algorithm(algorithm, kept_value(path, key)) && accepted(algorithm); };
    if (found()) return algorithm;
    if (!choices.may_add) return candidates[0];
    const ChoiceLock lock(path, found);
    if (found()) return algorithm;  // another process has chosen meanwhile
    if (lock.held && keep_fastest(algorithm, candidates, path, key, product, run, stream)) return algorithm;
    choices.may_add = false;
    const std::string why =
        lock.others ? format("another process chooses for more than %.0f s", BLAS_LOCK_S) : "it cannot be written";
    warning("%s: %s; products that are not in it use the first algorithm of cuBLASLt", path, why);
    return candidates[0];
}
