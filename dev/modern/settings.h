// The flags of a run, named as those of train_gpt2_cpu, which has more of them.
#pragma once
#include "dev/modern/config.h"
#include "llmc/optim/optimizers.h"
#include "llmc/optim/schedule.h"

namespace modern {

struct Settings {
    std::string model = "L6C192H6K2", data = "dev/data/shakespeare_train.bin",
                val_data = "dev/data/shakespeare_val.bin", out_dir, precision = "fp32", schedule = "cosine", mlp, norm,
                positions, optimizer = "adamw", prompt, tokenizer;
    int64_t B = 4, T = 0, tokens = 0, max_steps = 100, save_every = 0, resume = 0, val_every = 20, val_batches = 20,
            warmup = 0, window_warmup = 0, seed = 42, shuffle = 1, threads = 0, plan = 0, qk_norm = -1, tied = -1,
            value_residual = -1, sample_tokens = 0, top_k = 0;
    double rate = -1, final_frac = 1, decay = 0, clip = 1, minutes = 0, softcap = -1, theta = -1, temperature = 1;
};
constexpr const char* HELP =
    "  -e MODEL                   a model file, or sizes such as L4C96H6K2 (L6C192H6K2)\n"
    "  --mlp, --norm, --positions of a new model: swiglu, relu2, gelu | rms, layer | rotary, learned; the first\n"
    "  --qk-norm, --tied          of a new model: 0, 1 (0 and 1)\n"
    "  --value-residual           of a new model: 0, 1 (0)\n"
    "  --softcap, --rope-theta    of a new model (0 = none; 10000)\n"
    "  -i, -j                     token shards to train and to validate on (the Shakespeare of the repository)\n"
    "  -b, -t, -d                 sequences at once (4), their length (the context), tokens of a step (B T)\n"
    "  -x, --max-minutes          steps (100), and after how many minutes it ends before (0 = off)\n"
    "  --optimizer                adamw, or muon for the matrices of layers (adamw)\n"
    "  -l, -k, -u, -q, -c         rate (3e-4; muon 0.01), schedule (cosine), warmup, last rate's share (1), decay (0)\n"
    "  --window-warmup            attention sees few positions at first, all after so many steps (0)\n"
    "  --grad-clip                largest norm of the gradient, 0 = off (1)\n"
    "  -v, -m                     validate every so many steps (20), on so many batches (20)\n"
    "  -o, -n, -y                 folder, save every so many steps (0 = never), 1: go on from the newest checkpoint\n"
    "  -g, --prompt, --tokenizer  at the end so many tokens follow a prompt (0); without a tokenizer it is numbers\n"
    "  --temperature, --top-k     0 = the likeliest (1); among so many (0 = all)\n"
    "  --precision, --threads     fp32 or bf16 (fp32), and how many (physical cores)\n"
    "  --seed, --shuffle, --plan  42, 1; 1: print what the run would need and stop\n";
inline void read_settings(Settings& s, int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "--help") printf("%s", HELP), exit(0);
    const int64_t many = 1ll << 40;
    read_flags(argc, argv,
               {{{"-e", &s.model},
                 {"-i", &s.data},
                 {"-j", &s.val_data},
                 {"-o", &s.out_dir},
                 {"-k", &s.schedule},
                 {"--precision", &s.precision},
                 {"--mlp", &s.mlp},
                 {"--norm", &s.norm},
                 {"--positions", &s.positions},
                 {"--optimizer", &s.optimizer},
                 {"--prompt", &s.prompt},
                 {"--tokenizer", &s.tokenizer}},
                {{"-b", {&s.B, 1, 1 << 20}},
                 {"-t", {&s.T, 1, 1 << 20}},
                 {"-d", {&s.tokens, 1, many}},
                 {"-x", {&s.max_steps, 0, many}},
                 {"-n", {&s.save_every, 0, many}},
                 {"-y", {&s.resume, 0, 1}},
                 {"-v", {&s.val_every, 0, many}},
                 {"-m", {&s.val_batches, 1, many}},
                 {"-u", {&s.warmup, 0, many}},
                 {"--seed", {&s.seed, 0, many}},
                 {"--shuffle", {&s.shuffle, 0, 1}},
                 {"--threads", {&s.threads, 1, 4096}},
                 {"--plan", {&s.plan, 0, 1}},
                 {"--qk-norm", {&s.qk_norm, 0, 1}},
                 {"--value-residual", {&s.value_residual, 0, 1}},
                 {"--window-warmup", {&s.window_warmup, 0, many}},
                 {"-g", {&s.sample_tokens, 0, many}},
                 {"--top-k", {&s.top_k, 0, MOST_V}},
                 {"--tied", {&s.tied, 0, 1}}},
                {{"-l", {&s.rate}},
                 {"-q", {&s.final_frac, 1}},
                 {"-c", {&s.decay}},
                 {"--grad-clip", {&s.clip, 1e9}},
                 {"--max-minutes", {&s.minutes, 1e6}},
                 {"--softcap", {&s.softcap}},
                 {"--temperature", {&s.temperature}},
                 {"--rope-theta", {&s.theta, 1e9}}}});
    if (s.precision != "fp32" && s.precision != "bf16")
        usage_error("--precision \"%s\": fp32 and bf16 are accepted", s.precision);
    if (s.optimizer != "adamw" && s.optimizer != "muon")
        usage_error("--optimizer \"%s\": adamw and muon are accepted", s.optimizer);
    if (s.rate < 0) s.rate = OPTIMIZERS[find_optimizer(s.optimizer.c_str())].rate;
#ifdef KERNELS_REFERENCE
    if (s.precision != "fp32") usage_error("--precision bf16: the kernels of KERNELS=reference compute in fp32");
#endif
    const auto known = [&](const Schedule& schedule) { return s.schedule == schedule.name; };
    if (std::none_of(std::begin(SCHEDULES), std::end(SCHEDULES), known))
        usage_error("-k \"%s\": %s are accepted", s.schedule, schedule_names());
    if (s.save_every > 0 && s.out_dir.empty()) usage_error("-n saves to the folder that -o names, which is not given");
    if (s.resume && s.out_dir.empty()) usage_error("-y 1 goes on with the folder that -o names, which is not given");
}

}  // namespace modern
