/* Shared by the parts of tilewright.native. */
#ifndef TW_NATIVE_H
#define TW_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "dlpack.h"
#include "tw_call.h"

/* guards.c: what must hold for a compiled entry to serve a call. */

typedef struct {
    PyTypeObject *type; /* exact type; NULL: any tensor */
    dl_dtype dtype;
    dl_device device;
    int32_t ndim;
    int8_t requires_grad; /* -1: not asked */
    int32_t input;        /* index among the graph's inputs, or -1 */
    int64_t *shape;       /* ndim sizes, then ndim strides; TW_ANY: not asked */
} tw_meta;

#define TW_ANY INT64_MIN

/* sizes.c: arithmetic on a call's sizes, in postfix. */

typedef struct {
    int op;
    int64_t value; /* a constant, or the number of a size */
} tw_step;

typedef struct {
    Py_ssize_t steps;
    tw_step step[];
} tw_program;

/* The program of a tuple; NULL with an exception. `bound[k]` says which of `symbols` sizes are known where it runs. */
tw_program *tw_program_new(PyObject *spec, const char *bound, Py_ssize_t symbols);
/* 1 with *result; 0 where it has none: a division by zero, or a number beyond 64 bits. */
int tw_program_run(const tw_program *p, const int64_t *sizes, int64_t *result);

typedef struct {
    int16_t op;
    int16_t dim;   /* of a row on one dimension of a tensor */
    int32_t slot;  /* the slot read */
    Py_ssize_t n;  /* a position, a length, or the number of a size */
    PyObject *a;   /* key, expected object or callable: owned */
    PyObject *b;   /* argument of a callable: owned, may be NULL */
    union {
        tw_meta *meta;       /* of a tensor row */
        tw_program *program; /* of a row that asks for a size */
    };
} tw_row;

typedef struct {
    Py_ssize_t nargs;     /* positional arguments */
    PyObject *kwnames;    /* tuple of keyword names, in order */
    Py_ssize_t rows;
    tw_row *row;
    Py_ssize_t slots;     /* slots that the rows fill; the last positions hold derived values */
    Py_ssize_t inputs;
    Py_ssize_t symbols;   /* sizes that the rows read */
} tw_guards;

/* One call's values: a borrowed object a slot, pointer and object of each graph input, and the sizes. */
typedef struct {
    PyObject **slot;
    void **pointer;
    PyObject **tensor;
    int64_t *bytes; /* extent of each input from its first element, for overlap checks; NULL where not wanted */
    int64_t *sizes;
    int64_t *planned; /* what `tw_plan` finds out of the sizes */
} tw_found;

int tw_guards_init(tw_guards *g, Py_ssize_t nargs, PyObject *kwnames, PyObject *rows, Py_ssize_t inputs);
void tw_guards_clear(tw_guards *g);
int tw_guards_traverse(tw_guards *g, visitproc visit, void *arg);
/* 1: all hold; 0: `*failed` is the row that does not; -1: a Python exception is set. */
int tw_guards_check(const tw_guards *g, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, tw_found *found, Py_ssize_t *failed);
int tw_describe(PyObject *tensor, dl_tensor *out);
PyObject *tw_set_exchange(PyObject *self, PyObject *type);

/* parallel.c: threads and memory of a call. */

void tw_parallel(const tw_call *call, tw_kernel kernel, void *args, int64_t total, int64_t cost);
PyObject *tw_profile(PyObject *self, PyObject *args);
PyObject *tw_set_openmp(PyObject *self, PyObject *args);
int tw_parallel_setup(void);
char *tw_aligned(size_t bytes);
void tw_aligned_free(char *p);

/* launch.c: the types Entry and Dispatcher. */

extern PyTypeObject tw_entry_type;
extern PyTypeObject tw_dispatcher_type;

#endif
