// A running checksum: four independent multiply-and-rotate lanes over 8-byte words, as in xxHash.
// It runs at about the speed of memory and detects damage; it is no defence against forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <algorithm>
#include "llmc/base/hot_loop.h"

struct Checksum {
    uint64_t lane[4] = {0x9E3779B97F4A7C15u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu, 0xD6E8FEB86659FD93u};
    unsigned char rest[32];  // the bytes that do not fill a block yet
    size_t rest_bytes = 0, total_bytes = 0;

    HOT_LOOP static uint64_t mix(uint64_t state, uint64_t word) {
        state ^= word * 0x9FB21C651E98DF25u;
        return ((state << 29) | (state >> 35)) * 0xC2B2AE3D27D4EB4Fu;
    }
    HOT_LOOP void block(const unsigned char* p) {
        for (int i = 0; i < 4; i++) {
            uint64_t word;
            memcpy(&word, p + 8 * i, 8);
            lane[i] = mix(lane[i], word);
        }
    }
    HOT_LOOP void add(const void* data, size_t bytes) {
        if (bytes == 0) return;  // data may be null
        const unsigned char* p = (const unsigned char*)data;
        total_bytes += bytes;
        if (rest_bytes) {
            size_t take = std::min(bytes, 32 - rest_bytes);
            memcpy(rest + rest_bytes, p, take);
            rest_bytes += take, p += take, bytes -= take;
            if (rest_bytes < 32) return;
            block(rest);
            rest_bytes = 0;
        }
        for (; bytes >= 32; p += 32, bytes -= 32) block(p);
        if (bytes) memcpy(rest, p, bytes);
        rest_bytes = bytes;
    }
    uint64_t value() const {
        Checksum end = *this;
        memset(end.rest + rest_bytes, 0, 32 - rest_bytes);
        end.block(end.rest);
        uint64_t h = total_bytes;
        for (uint64_t l : end.lane) h = mix(h, l);
        return h ^ (h >> 31);
    }
};
