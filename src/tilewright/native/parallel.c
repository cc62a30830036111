/* Threads and memory of a call.
 *
 * Threads are those of the OpenMP run-time library that torch already loaded: a pool of our own would compete with its
 * spinning workers. A child forked after that pool started has no workers, and a parallel region there would wait for
 * them for ever: an atfork handler switches the child to serial execution.
 */
#include "native.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* Waking a thread costs about this much one-thread work (measured: fork and join 0.4-0.5 us, plus cold caches). */
#define NANOSECONDS_A_THREAD 2500
/* Chunks a thread: enough that a thread that lost its core for a while does not hold up the others. */
#define CHUNKS_A_THREAD 4

typedef void (*gomp_parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*omp_number_fn)(void);

static gomp_parallel_fn gomp_parallel;
static omp_number_fn omp_thread_num;
static int serial;

typedef struct {
    tw_kernel kernel;
    void *args;
    int64_t total, chunk;
    char *scratch;
    int64_t scratch_bytes;
    atomic_llong next;
} region;

static void work(void *context) {
    region *r = context;
    char *scratch = r->scratch + omp_thread_num() * r->scratch_bytes;
    for (;;) {
        int64_t lo = atomic_fetch_add_explicit(&r->next, r->chunk, memory_order_relaxed);
        if (lo >= r->total) return;
        int64_t hi = lo + r->chunk < r->total ? lo + r->chunk : r->total;
        r->kernel(r->args, lo, hi, scratch);
    }
}

static void run_blocks(const tw_call *call, tw_kernel kernel, void *args, int64_t total, int64_t cost) {
    int64_t threads = call->threads;
    if (threads > total) threads = total;
    if (threads > 1 + cost / NANOSECONDS_A_THREAD) threads = 1 + cost / NANOSECONDS_A_THREAD;
    if (threads <= 1 || serial || !gomp_parallel) {
        kernel(args, 0, total, call->scratch);
        return;
    }
    int64_t chunk = total / (threads * CHUNKS_A_THREAD);
    region r = {kernel, args, total, chunk > 0 ? chunk : 1, call->scratch, call->scratch_bytes, 0};
    gomp_parallel(work, &r, (unsigned)threads, 0);
}

/* Nanoseconds of each launch, in order, while profiling is on: `profile_room` entries at the most. */
static int64_t *profile;
static atomic_llong profile_used;
static int64_t profile_room;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

void tw_parallel(const tw_call *call, tw_kernel kernel, void *args, int64_t total, int64_t cost) {
    if (!profile_room) {
        run_blocks(call, kernel, args, total, cost);
        return;
    }
    int64_t start = now();
    run_blocks(call, kernel, args, total, cost);
    int64_t at = atomic_fetch_add(&profile_used, 1);
    if (at < profile_room) profile[at] = now() - start;
}

/* profile(launches): time that many launches from here on; profile(0): stop. Returns the nanoseconds of those timed so far. */
PyObject *tw_profile(PyObject *self, PyObject *args) {
    Py_ssize_t room;
    (void)self;
    if (!PyArg_ParseTuple(args, "n", &room)) return NULL;
    int64_t used = profile_used < profile_room ? profile_used : profile_room;
    PyObject *list = PyList_New(used);
    for (int64_t i = 0; list && i < used; i++) PyList_SET_ITEM(list, i, PyLong_FromLongLong(profile[i]));
    int64_t *fresh = room > 0 ? calloc((size_t)room, sizeof *fresh) : NULL;
    profile_room = fresh ? room : 0;
    profile_used = 0;
    free(profile);
    profile = fresh;
    return list;
}

static void forked(void) { serial = 1; }

int tw_parallel_setup(void) { return pthread_atfork(NULL, NULL, forked); }

/* set_openmp(GOMP_parallel, omp_get_thread_num): addresses in the library that torch loaded; zeros for serial execution. */
PyObject *tw_set_openmp(PyObject *self, PyObject *args) {
    Py_ssize_t parallel, number;
    (void)self;
    if (!PyArg_ParseTuple(args, "nn", &parallel, &number)) return NULL;
    gomp_parallel = (gomp_parallel_fn)parallel;
    omp_thread_num = (omp_number_fn)number;
    Py_RETURN_NONE;
}

/* 64-byte aligned; large blocks ask for huge pages, which spares most of the page faults of a first touch. */
char *tw_aligned(size_t bytes) {
    size_t alignment = bytes >= ((size_t)4 << 20) ? ((size_t)2 << 20) : 64;
    void *p = NULL;
    if (posix_memalign(&p, alignment, bytes ? bytes : 64)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment > 64) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

void tw_aligned_free(char *p) { free(p); }
