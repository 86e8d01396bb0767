// The AMX path of llmc/cpu/matrix_unit.h beside the portable one, on a processor without an
// operating system; results go to the serial port.
#include "llmc/cpu/matrix_unit.h"

static void out_port(unsigned short port, unsigned char value) { asm volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static unsigned char in_port(unsigned short port) {
    unsigned char value;
    asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static void print(const char* text) {
    for (; *text; text++) {
        while (!(in_port(0x3fd) & 0x20)) {}
        out_port(0x3f8, *text);
    }
}
static void print(long number) {
    char digits[24];
    int n = 23;
    digits[n] = 0;
    do digits[--n] = (char)('0' + number % 10);
    while (number /= 10);
    print(digits + n);
}

// What the compiler may call, without a library; the empty asm keeps it from making these loops
// calls of themselves.
extern "C" void* memcpy(void* to, const void* from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ((char*)to)[i] = ((const char*)from)[i];
        asm volatile("");
    }
    return to;
}
extern "C" void* memset(void* to, int value, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ((char*)to)[i] = (char)value;
        asm volatile("");
    }
    return to;
}

constexpr int STRIPS = 4, COLUMNS = 5, K_TILES = 4, A_STRIDE = 200, LDC = 128;
static bf16 a[STRIPS * TILE_ROWS * A_STRIDE], b[K_TILES * TILE_K * LDC], tiles[COLUMNS * K_TILES * TILE_ELEMS];
static float with_amx[STRIPS * TILE_ROWS * LDC], portable[STRIPS * TILE_ROWS * LDC];

static float next_value() {
    static unsigned state = 1;
    state = state * 1664525 + 1013904223;
    return (float)((int)(state >> 16) % 2001 - 1000) / 512.0f;
}
static long differing(int strips, int columns, int k_tiles, bool add) {
    for (int i = 0; i < STRIPS * TILE_ROWS * LDC; i++) with_amx[i] = portable[i] = 0.5f;
    TileProduct product{with_amx, LDC, a, A_STRIDE, strips, tiles, K_TILES * TILE_ELEMS, columns, k_tiles, add};
    Amx::open();
    multiply_amx<Amx>(product);
    Amx::close();
    product.C = portable;
    multiply_portable(product);
    long count = 0;
    for (int i = 0; i < STRIPS * TILE_ROWS * LDC; i++) {
        const float d = with_amx[i] - portable[i];
        count += !(d < 1e-3f && d > -1e-3f);  // sums of up to 128 products below 4, in another order
    }
    return count;
}
extern "C" void run_tests() {
    out_port(0x3fb, 3);  // eight bits a character
    for (bf16& v : a) v = next_value();
    for (bf16& v : b) v = next_value();
    pack_tiles(tiles, MatrixView<bf16>{b, LDC, 1}, 0, K_TILES * TILE_K, 0, COLUMNS * TILE_COLS);
    long passed = 0, failed = 0;
    for (int strips = 1; strips <= STRIPS; strips++)
        for (int columns = 1; columns <= COLUMNS; columns++)
            for (int k_tiles : {1, K_TILES})
                for (bool add : {false, true}) (differing(strips, columns, k_tiles, add) ? failed : passed)++;
    print("products on AMX: "), print(passed), print(" equal, "), print(failed), print(" differ\n");
}
