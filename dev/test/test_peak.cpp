// The peak that MFU is a share of: it is kept from run to run, only grows, and is not shown if a
// step has been faster.
#define TRAINER_WITHOUT_MAIN
#include <dirent.h>
#include "dev/test/test.h"
#include "train_gpt2_cpu.cpp"

static int files_in(const std::string& folder) {
    int count = 0;
    DIR* dir = opendir(folder.c_str());
    while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

int main() {
    char pattern[] = "/tmp/gpt2_peak_XXXXXX";
    const std::string folder = mkdtemp(pattern), path = folder + "/peaks";
    start_test("peaks are kept by key, one line each; what is no number counts as none");
    EXPECT(kept_peak(path, "a") == 0);
    keep_peak(path, "a", 1e9), keep_peak(path, "a, b", 2e9), keep_peak(path, "a", 3e9);
    EXPECT(kept_peak(path, "a") == 3e9 && kept_peak(path, "a, b") == 2e9 && kept_peak(path, "b") == 0 &&
           files_in(folder) == 1);
    for (const char* text : {"a: \n", "a: nan\n", "a: -5\n", "a: 1e300\n", "a: inf\n", "\n\n", "a:"}) {
        FILE* file = fopen(path.c_str(), "w");
        fputs(text, file);
        fclose(file);
        EXPECT(kept_peak(path, "a") == 0);
    }
    keep_peak(path, "b", 1e9);
    EXPECT(kept_peak(path, "b") == 1e9);
    keep_peak("/nowhere/peaks", "b", 1e9);

    start_test("a higher peak kept before is used, a lower one replaced");
    device.threads = 1;
    unlink(path.c_str());
    keep_peak(path, "other", 5e9);
    double measured = 0;
    for (int i = 0; i < 100 && measured == 0; i++) measured = find_peak(false, path);
    const std::string key = format("%s, 1 threads, fp32, vectors of %d bytes", cpu_name(), VEC_BYTES);
    EXPECT(measured > 1e8 && std::fabs(kept_peak(path, key) - measured) < 1e-5 * measured &&
           kept_peak(path, "other") == 5e9);
    keep_peak(path, key, 9e17);
    EXPECT(find_peak(false, path) == 9e17);
    keep_peak(path, key, 1);
    EXPECT(find_peak(false, path) > 1e8 && kept_peak(path, key) > 1e8);

    start_test("a plan's peak is the best of several measurements, and of those kept; what varies is known");
    unlink(path.c_str());
    const PeakRange range = find_peak_range(false, path);
    EXPECT(0 < range.least && range.least <= range.most);
    const double kept = kept_peak(path, key);  // none if the machine was never quiet
    EXPECT(kept == 0 || std::fabs(kept - range.most) < 1e-5 * kept);
    keep_peak(path, key, 9e17);
    const PeakRange busy = find_peak_range(false, path);
    EXPECT(busy.most == 9e17 && busy.least < 1e16 && kept_peak(path, key) == 9e17);
    PlanDevice machine{"this machine", busy.most};
    EXPECT(!machine.varies());
    machine.least_flops_s = busy.least;
    EXPECT(machine.varies());
    machine.least_flops_s = 0.95 * busy.most;
    EXPECT(!machine.varies());

    start_test("the same for bytes per second; the memory that measuring takes is no part of a run's peak");
    const std::string memory = format("%s, 1 threads, memory, vectors of %d bytes", cpu_name(), VEC_BYTES);
    [[maybe_unused]] const int64_t resident_before = most_resident_bytes();
    const double bytes_s = find_memory_peak(path);
    EXPECT(bytes_s > 1e7 && std::fabs(kept_peak(path, memory) - bytes_s) < 1e-5 * bytes_s);
#ifdef __linux__
    EXPECT(most_resident_bytes() < resident_before + (64 << 20));
#endif
    keep_peak(path, memory, 9e17);
    EXPECT(find_memory_peak(path) == 9e17);
    keep_peak(path, memory, 1);
    EXPECT(find_memory_peak(path) > 1e7 && kept_peak(path, memory) > 1e7);

    start_test("a peak below what a step has reached is not shown");
    GPT2 model;
    const auto peak_flops = cpu_backend<float>().peak_flops;
    model.peak = 100;
    EXPECT(peak_flops(model, 99.0) == 100);
    EXPECT(peak_flops(model, 1e17) == 0 && peak_flops(model, 1e17) == 0);
    EXPECT(peak_flops(model, 1e6) > 1e6);
    if (system(("rm -rf " + folder).c_str())) printf("%s stays\n", folder.c_str());
    return report_tests();
}
