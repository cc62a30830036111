/* The C interface of a compiled graph. A caller fills a `tw_call` and passes it to `tw_run`.
 *
 * `size` and `abi` come first so that a reader can tell which fields exist; new fields are added at the end only.
 */
#ifndef TW_CALL_H
#define TW_CALL_H

#include <stdint.h>

#define TW_ABI 1

struct tw_call;

/* A kernel: runs blocks lo..hi-1 of its flattened grid. `scratch` belongs to the thread that runs it. */
typedef void (*tw_kernel)(void *args, int64_t lo, int64_t hi, void *scratch);

/* Runs `kernel` over `total` blocks on as many threads as `cost` (one-thread nanoseconds) is worth. */
typedef void (*tw_parallel_for)(const struct tw_call *call, tw_kernel kernel, void *args, int64_t total, int64_t cost);

/* Of a graph with size symbols: shape, strides and offset of each output where one of them depends on a symbol, then the bytes of
 * the arena and of one thread's scratch. */
typedef void (*tw_plan)(const int64_t *sizes, int64_t *out);

typedef struct tw_call {
    uint32_t size;          /* sizeof(tw_call) */
    uint32_t abi;           /* TW_ABI */
    void *const *inputs;    /* one pointer a graph input: its first element */
    void *const *outputs;   /* one pointer a graph output that owns memory, else NULL */
    char *folded;           /* what `tw_fold` computed from parameters */
    char *arena;            /* temporaries: arena_bytes, 64-byte aligned */
    char *scratch;          /* scratch_bytes for each of `threads` threads, 64-byte aligned */
    int64_t scratch_bytes;
    const int64_t *sizes;   /* values of the size symbols, in the order of the plan */
    tw_parallel_for parallel_for;
    void *pool;             /* parallel_for's own context */
    int64_t threads;
    void *stream;           /* of an accelerator; NULL on a CPU */
    char error[256];        /* a message where tw_run returns non-zero */
} tw_call;

#endif
