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

/* The kinds of rows; those up to TW_CELL fill a slot, those from TW_INT_SYMBOL on run no code. */
enum { TW_CONST, TW_GET, TW_ITEM, TW_DICT, TW_ATTR, TW_CELL, TW_TYPE, TW_IS, TW_SAME, TW_EQ, TW_LEN, TW_STATE, TW_ABSENT, TW_KEYS, TW_CLASS, TW_DIFFER,
       TW_PASS, TW_CODE, TW_INT_SYMBOL, TW_HOLDS, TW_TENSOR, TW_SYMBOL, TW_SIZE, TW_STRIDE, TW_KINDS };

typedef struct {
    int16_t op;
    int16_t dim;   /* of a row on one dimension of a tensor */
    int32_t slot;  /* the slot read */
    int32_t fills; /* the slot that the row fills */
    int32_t number; /* among the rows as they were given */
    Py_ssize_t n;  /* a position, a length, or the number of a size */
    PyObject *a;   /* key, expected object or callable: owned */
    PyObject *b;   /* argument of a callable: owned, may be NULL */
    union {
        tw_meta *meta;       /* of a tensor row */
        tw_program *program; /* of a row that asks for a size */
    };
} tw_row;

/* What stood under a key of a dictionary when its group held: alive as long as the dictionary is as it was. */
typedef struct {
    PyObject *value;
    const Py_ssize_t *length; /* of the value: its length must still be `n`; else NULL, and the value is put into `slot` */
    Py_ssize_t n;
    int32_t slot;
    int32_t row;
} tw_child;

/* Rows that one dictionary decides: what stands under its keys, what is not there, which objects those are. While the dictionary is as
 * it was when they all held last, they hold. */
typedef struct {
    PyObject *dict;    /* the dictionary that was checked last and its version, or NULL; not owned */
    uint64_t version;
    int32_t slot;
    int32_t member, members;    /* among the table's rows */
    int32_t child, children;    /* slots that rows outside the group read, and lengths */
} tw_group;

typedef struct {
    Py_ssize_t nargs;     /* positional arguments */
    PyObject *kwnames;    /* tuple of keyword names, in order */
    Py_ssize_t rows;
    tw_row *row;
    Py_ssize_t slots;     /* slots that the rows fill; the last positions hold derived values */
    Py_ssize_t inputs;
    Py_ssize_t symbols;   /* sizes that the rows read */
    Py_ssize_t steps, groups;
    int32_t *step;        /* what is checked in turn: a row, or, below 0, the group of number -1 - step */
    tw_group *group;
    tw_child *child;
} tw_guards;

/* groups.c: finds the groups of a table whose rows are read, and puts the rows into the order of checking. */
int tw_groups_init(tw_guards *g);
void tw_groups_clear(tw_guards *g);
/* Notes that a group's members hold; `version` is the dictionary's from before they were checked. */
void tw_group_held(const tw_guards *g, tw_group *group, PyObject *const *slot, uint64_t version);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* A number that changes with every change of a dictionary, and that no two ever share; 0 where this Python has none for it. From 3.13 on,
 * an object's attributes may be changed without its dictionary's noticing while that holds them by slot. */
static inline uint64_t tw_dict_version(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030E0000
    return (void)dict, 0;
#else
    const PyDictObject *d = (PyDictObject *)dict;
    return !PyDict_Check(dict) || (PY_VERSION_HEX >= 0x030D0000 && d->ma_values) ? 0 : d->ma_version_tag;
#endif
}
#pragma GCC diagnostic pop

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

/* launch.c: the type Entry. */

extern PyTypeObject tw_entry_type;
extern PyObject *tw_failed; /* raised where a compiled run fails an assertion: the call is then made in eager */
/* Checks the guards and, where they hold and `result` is no NULL, runs. 1 with *result, 0 where a guard fails, -1 on an exception. */
int tw_entry_try(PyObject *entry, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **result, Py_ssize_t *failed);

/* dispatch.c: the type Dispatcher. */

extern PyTypeObject tw_dispatcher_type;
PyObject *tw_set_bypass(PyObject *self, PyObject *on);

/* hook.c: the frame hook. */

int tw_hook_setup(void);
PyObject *tw_go_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
int tw_dispatch_setup(void);
PyObject *tw_segment(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *tw_skip(PyObject *self, PyObject *code);

#endif
