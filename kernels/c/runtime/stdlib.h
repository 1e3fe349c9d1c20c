// The part of C's <stdlib.h> that a kernel can have: memory. It reads no environment and ends no process.
#ifndef OMNILEARN_STDLIB_H
#define OMNILEARN_STDLIB_H

#include <stddef.h>

// These never return NULL for want of memory: a kernel over its limit is stopped.
void *malloc(size_t size);
void *realloc(void *pointer, size_t size);
void free(void *pointer);

// Traps.
__attribute__((noreturn)) void abort(void);

#endif
