// What C takes for granted and WebAssembly lacks, as far as a kernel needs it: memory on the heap, and bytes copied.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Begins a block of the heap, which has a power of two bytes. A freed block goes onto the list of its size and is taken from
// there again, so that a kernel that frees what it takes never grows beyond its largest call, however often it is called.
struct block {
    uint32_t order;     // the block has 2^order bytes, these included
    struct block *next; // on the list, while it is free
};

enum { ORDER_MIN = 4, ORDER_MAX = 30, PAGE = 65536 };

static struct block *vacant[ORDER_MAX + 1];

// Where the linker's data end and the heap begins; aligned to 16.
extern unsigned char __heap_base[];

// First byte that never was in a block.
static uint64_t heap_end;

void abort(void) {
    __builtin_trap();
}

static struct block *extend(uint32_t order) {
    uint64_t start = heap_end ? heap_end : (uint64_t)(uintptr_t)__heap_base;
    heap_end = start + (UINT64_C(1) << order);
    uint64_t pages = (heap_end + PAGE - 1) / PAGE, present = __builtin_wasm_memory_size(0);
    if (pages > PAGE) abort(); // 4 GiB
    if (pages > present && __builtin_wasm_memory_grow(0, pages - present) == SIZE_MAX) abort();
    return (struct block *)(uintptr_t)start;
}

void *malloc(size_t size) {
    if (size > (UINT32_C(1) << ORDER_MAX) - sizeof(struct block)) abort();
    uint32_t order = ORDER_MIN;
    while ((UINT32_C(1) << order) - sizeof(struct block) < size) order++;
    struct block *block = vacant[order];
    if (block) {
        vacant[order] = block->next;
    } else {
        block = extend(order);
        block->order = order;
    }
    return block + 1;
}

void free(void *pointer) {
    if (!pointer) return;
    struct block *block = (struct block *)pointer - 1;
    block->next = vacant[block->order];
    vacant[block->order] = block;
}

void *realloc(void *pointer, size_t size) {
    if (!pointer) return malloc(size);
    size_t room = (UINT32_C(1) << ((struct block *)pointer - 1)->order) - sizeof(struct block);
    if (size <= room) return pointer;
    void *moved = memcpy(malloc(size), pointer, room);
    free(pointer);
    return moved;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    return memmove(to, from, size);
}

void *memmove(void *to, const void *from, size_t size) {
    unsigned char *target = to;
    const unsigned char *source = from;
    if (target < source) {
        for (size_t i = 0; i < size; i++) target[i] = source[i];
    } else {
        for (size_t i = size; i > 0; i--) target[i - 1] = source[i - 1];
    }
    return to;
}

void *memset(void *to, int byte, size_t size) {
    unsigned char *target = to;
    for (size_t i = 0; i < size; i++) target[i] = (unsigned char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t size) {
    const unsigned char *left = a, *right = b;
    for (size_t i = 0; i < size; i++) {
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    }
    return 0;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}
