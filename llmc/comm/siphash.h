// SipHash-2-4 (Aumasson & Bernstein 2012, https://eprint.iacr.org/2012/351): a hash with a secret
// key. Without the key nobody can compute the hash of a text, however many other texts and their
// hashes they have seen. A process that sends the right hash has therefore shown that it knows the
// key, without sending the key.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

struct SipKey {
    uint64_t k0, k1;
};

inline bool same_key(const SipKey& a, const SipKey& b) { return a.k0 == b.k0 && a.k1 == b.k1; }

inline uint64_t siphash(const SipKey& key, const void* data, size_t bytes) {
    auto rotate = [](uint64_t x, int by) { return (x << by) | (x >> (64 - by)); };
    uint64_t v0 = key.k0 ^ 0x736f6d6570736575u, v1 = key.k1 ^ 0x646f72616e646f6du;
    uint64_t v2 = key.k0 ^ 0x6c7967656e657261u, v3 = key.k1 ^ 0x7465646279746573u;
    auto rounds = [&](int n) {
        for (; n > 0; n--) {
            v0 += v1, v2 += v3, v1 = rotate(v1, 13) ^ v0, v3 = rotate(v3, 16) ^ v2, v0 = rotate(v0, 32);
            v2 += v1, v0 += v3, v1 = rotate(v1, 17) ^ v2, v3 = rotate(v3, 21) ^ v0, v2 = rotate(v2, 32);
        }
    };
    for (size_t at = 0; at <= bytes; at += 8) {  // the last word holds the remaining bytes and the length
        uint64_t word = 0;
        memcpy(&word, (const char*)data + at, bytes - at < 8 ? bytes - at : 8);
        if (bytes - at < 8) word |= (uint64_t)bytes << 56;
        v3 ^= word;
        rounds(2);
        v0 ^= word;
    }
    v2 ^= 0xff;
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
}

// The key that is derived from a text of any length.
inline SipKey key_of(const std::string& text) {
    return {siphash({0, 0}, text.data(), text.size()), siphash({1, 0}, text.data(), text.size())};
}
