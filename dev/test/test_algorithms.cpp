// Which of cuBLASLt's algorithms computes a product: timed once, kept beside the program, and the
// same from then on (llmc/cuda/blas_choice.cuh). In the simulator the second of three is fastest,
// and each has bits of its own.
#include <sys/file.h>
#include <thread>
#include "dev/test/several.h"

static const char* const THREE = "env CUSIM_ALGORITHMS=3 ";
static const std::string RUN = "-e L2C64H1T64V256 -b 1 -t 64 -d 64 -x 2 ";

// A copy of the trainer in a folder of its own, with a folder for what it keeps, or without.
static std::string copy_of_trainer(const std::string& name, bool keeps = true) {
    run("mkdir -p " + dir(name) + (keeps ? "/build" : ""));
    run("cp " + SIM16 + " " + dir(name) + "/train");
    return dir(name) + "/train";
}
static std::string kept(const std::string& name) { return dir(name) + "/build/algorithms"; }
// Runs the trainer of that folder; the weights that it ends with are in the folder `out` there.
static Outcome train(const std::string& name, const std::string& more = "", const std::string& env = THREE) {
    run("rm -rf " + dir(name) + "/out");
    return run(env + tiny_run(dir(name) + "/train", RUN + "-o " + dir(name) + "/out " + more));
}
static std::string weights(const std::string& name) { return read_whole(dir(name) + "/out/model_00000002.bin"); }
static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at++) found++;
    return found;
}
static int lines(const std::string& text) { return count(text, "\n"); }

static void timed_once() {
    start_test("each product is timed once: the fastest is printed and kept, and found by the next run: same bits");
    copy_of_trainer("once");
    const Outcome first = train("once");
    const std::string file = read_whole(kept("once")), same = weights("once");
    EXPECT(first.status == 0 && !same.empty());
    EXPECT(lines(first.err) == lines(file) && lines(file) >= 15 && count(first.err, "algorithm 2 of 3") == lines(file));
    EXPECT(
        contains(first.err, "product 192 x 64 x 64, TN, bf16 to bf16, bias, aligned to 256 bytes: algorithm 2 of 3"));
    EXPECT(contains(first.err, "product 64 x 256 x 64, NT, bf16 to fp32, aligned to 256 bytes"));
    EXPECT(count(file, "cusim, cuBLASLt 1, ") == lines(file));
    const Outcome again = train("once");
    EXPECT(again.status == 0 && again.err.empty() && weights("once") == same && read_whole(kept("once")) == file);
    start_test("another choice in the file is used: other bits");
    std::string other = file;
    for (size_t at = 0; (at = other.find("0000000000000001 00", at)) != other.npos;) other.replace(at + 15, 1, "2");
    EXPECT(other != file);
    write_whole(kept("once"), other);
    EXPECT(train("once").err.empty() && weights("once") != same && read_whole(kept("once")) == other);
    start_test("GELU in an epilogue has entries of its own");
    EXPECT(contains(train("once", "-ge 2 -r 0").err, "bias and GELU") &&
           contains(read_whole(kept("once")), "derivative of GELU"));
    start_test("algorithms that the library refuses when they run are not kept; a kernel computes GELU");
    copy_of_trainer("refused");
    const Outcome refused = train("refused", "-ge 2 -r 0", "env CUSIM_ALGORITHMS=3 CUSIM_NO_FUSED_GELU=run ");
    EXPECT(refused.status == 0 && count(refused.err, "does not fuse GELU") >= 2 && !contains(refused.err, "inf ms") &&
           !contains(read_whole(kept("refused")), "GELU") && weights("refused") == same);
    start_test("products that occur in evaluation and generation are those of training, or not timed");
    const int before = lines(read_whole(kept("once")));
    EXPECT(train("once", "-v 1 -s 2 -g 8").status == 0 && lines(read_whole(kept("once"))) == before);
    start_test("a plan and a trace with timed products");
    copy_of_trainer("traced");
    EXPECT(train("traced", "--plan").status == 0 && read_whole(kept("traced")).empty());
    EXPECT(train("traced", "--trace " + dir("trace.json") + " --trace-steps 1:2").status == 0 &&
           lines(read_whole(kept("traced"))) == lines(file) && weights("traced") == same);
}

static void nothing_kept() {
    start_test("without a folder for it, or sizes that no step of training has: the library's first, nothing printed");
    copy_of_trainer("none", false), copy_of_trainer("odd");
    const Outcome r = train("none");
    EXPECT(r.status == 0 && r.err.empty() && train("none", "", "").status == 0);
    EXPECT(train("odd", "-e L1C48H1T33V256 -t 33 -d 33").err.empty() && read_whole(kept("odd")).empty());
    start_test("a file that cannot be written: one warning, and the library's first");
    const std::string first = (train("none"), weights("none"));
    copy_of_trainer("closed");
    run("mkdir " + kept("closed") + ".lock");
    const Outcome closed = train("closed");
    EXPECT(closed.status == 0 && one_line(closed.err) && contains(closed.err, "cannot be written") &&
           weights("closed") == first);
}

static void damaged() {
    start_test("entries that are damaged, or of another library, are named and replaced; the others stay");
    copy_of_trainer("damaged");
    EXPECT(train("damaged").status == 0);
    const std::string whole = read_whole(kept("damaged")), same = weights("damaged");
    if (!EXPECT(lines(whole) > 2)) return;
    const size_t first = whole.find(": ") + 2, second = whole.find(": ", whole.find('\n')) + 2;
    std::string wrong = whole;
    wrong.replace(first, 5, "12xyz"), wrong.replace(second, 16, "00000000deadbeef");
    write_whole(kept("damaged"), "\n\x01\xff no entry\n" + wrong);
    const Outcome r = train("damaged");
    EXPECT(r.status == 0 && count(r.err, "no algorithm of this library; it is replaced") == 2 &&
           count(r.err, "algorithm 2 of 3") == 2 && weights("damaged") == same);
    EXPECT(contains(read_whole(kept("damaged")), "no entry\n") && train("damaged").err.empty());
    start_test("a file that is cut short, too long, or no file: what is missing is timed again");
    for (const std::string& text : {whole.substr(0, whole.size() / 2), std::string(2 << 20, 'x')}) {
        write_whole(kept("damaged"), text);
        EXPECT(train("damaged").status == 0 && lines(read_whole(kept("damaged"))) == lines(whole) &&
               weights("damaged") == same);
    }
    run("rm " + kept("damaged") + " && mkdir " + kept("damaged"));
    EXPECT(train("damaged").status == 0);
}

static void processes() {
    start_test("two processes: one of them chooses, both use it: same bits as from the file");
    if (run(std::string(MPIRUN) + "-np 2 true").status != 0)
        return skip_test("two processes (apt-get install openmpi-bin libopenmpi-dev)");
    const std::string program = copy_of_trainer("two");
    const auto both = [&] {
        run("rm -rf " + dir("two/out"));
        return run(THREE + ("CUSIM_DEVICES=2 " + std::string(MPIRUN) + "-np 2 ") +
                   tiny_run(program, RUN + "-d 128 -o " + dir("two/out")));
    };
    const Outcome first = both();
    const std::string file = read_whole(kept("two")), same = weights("two");
    EXPECT(first.status == 0 && lines(file) >= 15 && count(first.err, "algorithm 2 of 3") == lines(file));
    const Outcome again = both();
    EXPECT(again.status == 0 && !contains(again.err, "product") && weights("two") == same &&
           read_whole(kept("two")) == file);
}

static void others_choose() {
    start_test("while another process has the lock, what it has kept so far is used at once: same bits");
    copy_of_trainer("chooser"), copy_of_trainer("waiter");
    EXPECT(train("chooser").status == 0);
    const std::string whole = read_whole(kept("chooser"));
    const int lock = open((kept("waiter") + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    EXPECT(lock >= 0 && flock(lock, LOCK_EX) == 0);
    std::thread chooses([&] { sleep(1), write_whole(kept("waiter"), whole); });
    const Outcome r = train("waiter");
    chooses.join();
    EXPECT(r.status == 0 && r.err.empty() && weights("waiter") == weights("chooser"));
    close(lock);
}

int main() {
    make_test_folder();
    timed_once();
    nothing_kept();
    damaged();
    processes();
    others_choose();
    return report_and_clean();
}
