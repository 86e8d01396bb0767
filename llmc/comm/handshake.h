// How two processes make sure that they belong to one run: both know a token, and neither sends it.
//
//     rank 0   -> other    Greeting: a number drawn for this connection (nonce)
//     other    -> rank 0   Hello: who it is, a nonce of its own, and the proof
//     rank 0   -> other    Verdict: what rank 0 makes of it, and the proof
//
// A proof is the keyed hash (siphash.h) of both nonces and the message; it takes the token to make
// one. Because of the nonces, messages recorded from one connection are of no use in another.
//
// The handshake keeps strangers out. What is sent afterwards is neither encrypted nor signed: the
// network between the machines must be one that you trust.
#pragma once
#include <sys/random.h>
#include <cstddef>
#include "llmc/base/check.h"
#include "llmc/comm/flag_sums.h"
#include "llmc/comm/siphash.h"

constexpr uint64_t GREETING_MAGIC = 0x3174706747524545u, HELLO_MAGIC = 0x3174706748454c4fu,
                   VERDICT_MAGIC = 0x3174706756455244u;

struct Nonce {
    uint64_t word[2];
};
struct ProgramName {
    char text[96];
};

// Messages have a fixed length and no padding. The proof is last; it covers everything before it.
struct Greeting {
    uint64_t magic;
    Nonce nonce;
};
struct Hello {
    uint64_t magic;
    Nonce nonce;
    int64_t processes, rank;
    ProgramName program;
    FlagSums flags;
    uint64_t proof;
};
enum VerdictCode : int64_t { NO_ANSWER, WELCOME, UNKNOWN_TOKEN, OTHER_NUMBERS, OTHER_PROGRAM, OTHER_FLAGS, I_AM_HERE };
struct Verdict {
    uint64_t magic;
    int64_t code;
    ProgramName program;
    FlagSums flags;
    uint64_t proof;
};
constexpr int64_t ONLY_ASKING = -1;  // as the rank in a Hello: asks whether rank 0 is there, does not join

// A process, as it introduces itself.
struct Member {
    int64_t processes, rank;
    ProgramName program;
    std::vector<std::string> flags{};  // that all must have, as "--batch-size 4"
};

inline Nonce fresh_nonce() {
    Nonce nonce;
    if (getentropy(&nonce, sizeof(nonce)) != 0) runtime_failure("the system has no random numbers to offer");
    return nonce;
}
// A token of 32 random hexadecimal digits.
inline std::string random_token() {
    const Nonce n = fresh_nonce();
    return format("%016x%016x", n.word[0], n.word[1]);
}
// The name of a program, cut to the length that messages have room for.
inline ProgramName program_name(const std::string& text) {
    ProgramName name{};
    text.copy(name.text, sizeof(name.text) - 1);
    return name;
}
// A name that another process has sent, with ? for what is not printable ASCII.
inline std::string printable(const ProgramName& name) {
    std::string text(name.text, strnlen(name.text, sizeof(name.text)));
    for (char& c : text)
        if (c < ' ' || c > '~') c = '?';
    return text;
}
inline bool same_program(const ProgramName& a, const ProgramName& b) {
    return memcmp(a.text, b.text, sizeof(a.text)) == 0;
}

// The proof of a message on the connection that these two nonces belong to.
template <class Message>
inline uint64_t proof_of(const Message& message, const SipKey& key, const Nonce& of_rank0, const Nonce& of_other) {
    char text[2 * sizeof(Nonce) + offsetof(Message, proof)];
    memcpy(text, &of_rank0, sizeof(Nonce));
    memcpy(text + sizeof(Nonce), &of_other, sizeof(Nonce));
    memcpy(text + 2 * sizeof(Nonce), &message, offsetof(Message, proof));
    return siphash(key, text, sizeof(text));
}

inline Hello make_hello(const Member& me, const SipKey& key, const Nonce& of_rank0) {
    Hello hello{HELLO_MAGIC, fresh_nonce(), me.processes, me.rank, me.program, sums_of(me.flags), 0};
    hello.proof = proof_of(hello, key, of_rank0, hello.nonce);
    return hello;
}
inline Verdict make_verdict(VerdictCode code, const Member& rank0, const SipKey& key, const Nonce& mine,
                            const Hello& hello) {
    Verdict verdict{VERDICT_MAGIC, code, {}, {}, 0};
    if (code != UNKNOWN_TOKEN) verdict.program = rank0.program, verdict.flags = sums_of(rank0.flags);
    verdict.proof = proof_of(verdict, key, mine, hello.nonce);
    return verdict;
}
// Rank 0's verdict on a hello. `mine` is the nonce of its greeting. Proofs are compared as single
// numbers, which takes the same time wherever they differ.
inline VerdictCode judge(const Hello& hello, const Member& rank0, const SipKey& key, const Nonce& mine) {
    if (hello.magic != HELLO_MAGIC || hello.proof != proof_of(hello, key, mine, hello.nonce)) return UNKNOWN_TOKEN;
    if (hello.rank == ONLY_ASKING) return I_AM_HERE;
    if (!same_program(hello.program, rank0.program)) return OTHER_PROGRAM;
    const bool fits = hello.processes == rank0.processes && hello.rank > rank0.rank && hello.rank < rank0.processes;
    if (!fits) return OTHER_NUMBERS;
    return same_flags(hello.flags, sums_of(rank0.flags)) ? WELCOME : OTHER_FLAGS;
}
