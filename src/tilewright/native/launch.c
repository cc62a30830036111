/* Entry: one compiled graph behind its guards.
 *
 * A call checks the guards, refreshes what was folded from parameters if those changed, allocates the outputs, runs
 * `tw_run` without the interpreter lock, and wraps the outputs. What needs Python (operators run by eager torch,
 * autograd) is left to the entry's `runner`.
 */
#include "native.h"

#include <string.h>

#define SAMPLES 256           /* elements of each folded tensor that every call compares, spread over it */
#define RELEASE_LOCK_ABOVE 20000 /* nanoseconds of work that make handing over the interpreter lock worth while */
#define STACK_SLOTS 64

/* --- torch functions, set once by configure() --- */

PyObject *tw_failed; /* raised where a compiled run fails an assertion: the call is then made in eager */
static PyObject *fn_empty, *fn_view, *fn_bump, *fn_threads, *names_dtype, *str_version;

static PyObject *configure(PyObject *self, PyObject *args) {
    /* configure(empty_strided, as_strided, increment_version, get_num_threads) */
    PyObject *empty, *view, *bump, *threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO", &empty, &view, &bump, &threads)) return NULL;
    Py_XSETREF(fn_empty, Py_NewRef(empty));
    Py_XSETREF(fn_view, Py_NewRef(view));
    Py_XSETREF(fn_bump, Py_NewRef(bump));
    Py_XSETREF(fn_threads, Py_NewRef(threads));
    if (!names_dtype) names_dtype = Py_BuildValue("(s)", "dtype");
    if (!str_version) str_version = PyUnicode_InternFromString("_version");
    if (!names_dtype || !str_version) return NULL;
    Py_RETURN_NONE;
}

static int64_t thread_count(void) {
    PyObject *n = PyObject_CallNoArgs(fn_threads);
    if (!n) return -1;
    int64_t count = PyLong_AsLongLong(n);
    Py_DECREF(n);
    return count;
}

/* --- memory shared by calls --- */

static int64_t aligned(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

/* What `tw_fold` computed; a call that runs while another folds anew keeps the old one alive. */
typedef struct {
    Py_ssize_t users, generation;
    char *data;
} folded;

static void folded_release(folded *f) {
    if (f && --f->users == 0) {
        tw_aligned_free(f->data);
        PyMem_Free(f);
    }
}

/* An arena with the scratch behind it; idle ones wait in the entry's list. */
typedef struct arena {
    struct arena *next;
    int64_t capacity, arena_bytes, scratch_bytes; /* the latter two as the call needs them */
    char *data;
} arena;

/* --- Entry --- */

typedef struct {
    int kind; /* 0: new memory; 1: view of an input; 2: view of an output; 3: the input object itself */
    Py_ssize_t of;
    PyObject *shape, *strides, *last; /* last: dtype for new memory, offset for a view */
    Py_ssize_t rank;   /* where `tw_plan` gives shape, strides and offset, else -1 */
    int64_t *planned;  /* what it gave last: shape, strides and last are made of that; or NULL */
} output;

typedef struct {
    Py_ssize_t input;
    int64_t bytes;
    void *pointer;
    int64_t version;
    uint64_t fingerprint;
} watch;

typedef struct {
    PyObject_HEAD
    tw_guards guards;
    int (*run)(const tw_call *);
    int (*fold)(const tw_call *);
    tw_plan plan;       /* NULL: sizes are constants */
    Py_ssize_t planned; /* the numbers that it gives */
    Py_ssize_t folded_bytes, arena_bytes, scratch_bytes, cost;
    Py_ssize_t outputs, watches, written;
    output *output;
    watch *watch;
    Py_ssize_t *write; /* inputs that the graph writes */
    PyObject *rebuild; /* None: the single output itself */
    PyObject *runner;  /* None: run natively */
    PyObject *data;    /* the owner's, for statistics */
    folded *folded; /* complete and of this generation, or NULL */
    Py_ssize_t generation;
    arena *idle;
    PyObject *weakrefs;
    Py_ssize_t folds; /* times the folded values were computed */
} entry;

static int output_init(output *o, PyObject *spec, Py_ssize_t inputs, Py_ssize_t index) {
    /* (kind, of, shape, strides, dtype | offset); the shape is a rank where shape, strides and offset depend on sizes */
    PyObject *shape, *strides, *last;
    o->rank = -1;
    if (!PyArg_ParseTuple(spec, "inOOO", &o->kind, &o->of, &shape, &strides, &last)) return -1;
    Py_ssize_t limit = o->kind == 2 ? index : inputs;
    if (o->kind < 0 || o->kind > 3 || (o->kind > 0 && (o->of < 0 || o->of >= limit))) {
        PyErr_Format(PyExc_ValueError, "output %zd: %R does not describe an output", index, spec);
        return -1;
    }
    if (PyLong_Check(shape)) {
        o->rank = PyLong_AsSsize_t(shape);
        if (o->rank < 0) return PyErr_Occurred() ? -1 : (PyErr_Format(PyExc_ValueError, "output %zd: no rank", index), -1);
    }
    o->shape = Py_NewRef(shape);
    o->strides = Py_NewRef(strides);
    o->last = Py_NewRef(last);
    return 0;
}

static Py_ssize_t *indices(PyObject *list, Py_ssize_t *count) {
    *count = PyList_GET_SIZE(list);
    Py_ssize_t *out = PyMem_Calloc((size_t)*count + 1, sizeof *out);
    for (Py_ssize_t i = 0; out && i < *count; i++) out[i] = PyLong_AsSsize_t(PyList_GET_ITEM(list, i));
    return out;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"nargs", "kwnames", "rows", "inputs", "outputs", "rebuild", "runner", "data", "run", "fold", "folded_bytes",
                            "arena_bytes", "scratch_bytes", "cost", "watch", "written", "plan", "symbols", NULL};
    Py_ssize_t nargs, inputs, run = 0, fold = 0, folded_bytes = 0, arena_bytes = 0, scratch_bytes = 0, cost = 0, plan = 0, symbols = 0;
    PyObject *kwnames, *rows, *outputs, *rebuild, *runner, *data, *watched, *written;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO!O!nO!OOOnnnnnnO!O!|nn", names, &nargs, &PyTuple_Type, &kwnames, &PyList_Type, &rows, &inputs,
                                     &PyList_Type, &outputs, &rebuild, &runner, &data, &run, &fold, &folded_bytes, &arena_bytes, &scratch_bytes,
                                     &cost, &PyList_Type, &watched, &PyList_Type, &written, &plan, &symbols))
        return NULL;
    entry *e = (entry *)type->tp_alloc(type, 0);
    if (!e) return NULL;
    e->run = (int (*)(const tw_call *))run;
    e->fold = (int (*)(const tw_call *))fold;
    e->plan = (tw_plan)plan;
    e->planned = plan ? 2 : 0;
    e->folded_bytes = folded_bytes;
    e->arena_bytes = aligned(arena_bytes);
    e->scratch_bytes = aligned(scratch_bytes);
    e->cost = cost;
    e->rebuild = Py_NewRef(rebuild);
    e->runner = Py_NewRef(runner);
    e->data = Py_NewRef(data);
    if (tw_guards_init(&e->guards, nargs, kwnames, rows, inputs)) goto fail;
    if (e->guards.symbols < symbols) {
        PyErr_Format(PyExc_ValueError, "the guards read %zd sizes of %zd", e->guards.symbols, symbols);
        goto fail;
    }
    e->output = PyMem_Calloc((size_t)PyList_GET_SIZE(outputs) + 1, sizeof(output));
    e->watch = PyMem_Calloc((size_t)PyList_GET_SIZE(watched) + 1, sizeof(watch));
    e->write = indices(written, &e->written);
    if (!e->output || !e->watch || !e->write) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); i++) {
        e->outputs = i + 1;
        if (output_init(&e->output[i], PyList_GET_ITEM(outputs, i), inputs, i)) goto fail;
        if (e->output[i].rank < 0) continue;
        if (!plan) {
            PyErr_Format(PyExc_ValueError, "output %zd depends on sizes, but nothing plans for them", i);
            goto fail;
        }
        e->planned += 2 * e->output[i].rank + 1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(watched); i++) {
        e->watches = i + 1;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(watched, i), "nL", &e->watch[i].input, &e->watch[i].bytes)) goto fail;
        if (e->watch[i].input < 0 || e->watch[i].input >= inputs) {
            PyErr_Format(PyExc_ValueError, "watch %zd: no input %zd", i, e->watch[i].input);
            goto fail;
        }
    }
    return (PyObject *)e;
fail:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "bad entry");
    Py_DECREF(e);
    return NULL;
}

static int entry_traverse(entry *e, visitproc visit, void *arg) {
    Py_VISIT(e->rebuild);
    Py_VISIT(e->runner);
    Py_VISIT(e->data);
    for (Py_ssize_t i = 0; i < e->outputs; i++) Py_VISIT(e->output[i].last);
    return tw_guards_traverse(&e->guards, visit, arg);
}

static int entry_clear(entry *e) {
    for (Py_ssize_t i = 0; i < e->outputs; i++) {
        Py_CLEAR(e->output[i].shape);
        Py_CLEAR(e->output[i].strides);
        Py_CLEAR(e->output[i].last);
        PyMem_Free(e->output[i].planned);
        e->output[i].planned = NULL;
    }
    e->outputs = 0;
    Py_CLEAR(e->rebuild);
    Py_CLEAR(e->runner);
    Py_CLEAR(e->data);
    tw_guards_clear(&e->guards);
    return 0;
}

static void arenas_free(entry *e) {
    while (e->idle) {
        arena *a = e->idle;
        e->idle = a->next;
        tw_aligned_free(a->data);
        PyMem_Free(a);
    }
}

static void entry_dealloc(entry *e) {
    PyObject_GC_UnTrack(e);
    if (e->weakrefs) PyObject_ClearWeakRefs((PyObject *)e);
    entry_clear(e);
    arenas_free(e);
    folded_release(e->folded);
    PyMem_Free(e->output);
    PyMem_Free(e->watch);
    PyMem_Free(e->write);
    Py_TYPE(e)->tp_free((PyObject *)e);
}

/* --- one call --- */

/* A weighted sum of words spread over the memory: any change of a sampled word changes it. Words are taken in pairs, since
 * those at even places would be the low halves of float64 numbers, which a change of sign or a power of two leaves alone. */
static uint64_t fingerprint(const char *p, int64_t bytes) {
    int64_t pairs = bytes / 8, step = pairs > SAMPLES ? pairs / SAMPLES : 1;
    uint64_t sum = (uint64_t)bytes;
    for (int64_t i = 0; i < pairs; i += step) {
        uint32_t w[2];
        memcpy(w, p + 8 * i, 8);
        uint64_t weight = 4 * (uint64_t)i + 0x9E3779B97F4A7C15u;
        sum += w[0] * weight + w[1] * (weight + 2);
    }
    for (int64_t i = pairs * 8; i < bytes; i++) sum = sum * 31 + (unsigned char)p[i];
    return sum;
}

/* The version counter of a tensor, or -1 for one without (an inference tensor). */
static int64_t version(PyObject *tensor) {
    PyObject *v = PyObject_GetAttr(tensor, str_version);
    if (!v) {
        PyErr_Clear();
        return -1;
    }
    int64_t n = PyLong_AsLongLong(v);
    Py_DECREF(v);
    return n;
}

/* Brings the record of each watched input up to date; whether any differed. */
static int changed(entry *e, const tw_found *found) {
    int any = 0;
    for (Py_ssize_t i = 0; i < e->watches; i++) {
        watch *w = &e->watch[i];
        void *pointer = found->pointer[w->input];
        int64_t counter = version(found->tensor[w->input]);
        uint64_t print = fingerprint(pointer, w->bytes);
        any |= pointer != w->pointer || counter != w->version || print != w->fingerprint;
        w->pointer = pointer;
        w->version = counter;
        w->fingerprint = print;
    }
    return any;
}

static arena *arena_take(entry *e, int64_t threads, const int64_t *planned) {
    arena *a = e->idle;
    if (a) e->idle = a->next;
    if (!a && !(a = PyMem_Calloc(1, sizeof *a))) return (arena *)PyErr_NoMemory();
    a->arena_bytes = planned ? planned[e->planned - 2] : e->arena_bytes;
    a->scratch_bytes = planned ? aligned(planned[e->planned - 1]) : e->scratch_bytes;
    int64_t needed = a->arena_bytes + threads * a->scratch_bytes;
    if (a->data && a->capacity >= needed) return a;
    tw_aligned_free(a->data);
    a->capacity = needed;
    a->data = tw_aligned((size_t)needed);
    if (a->data) return a;
    PyMem_Free(a);
    return (arena *)PyErr_NoMemory();
}

static int invoke(int (*f)(const tw_call *), tw_call *call, int64_t cost) {
    int rc;
    if (cost > RELEASE_LOCK_ABOVE) {
        Py_BEGIN_ALLOW_THREADS
        rc = f(call);
        Py_END_ALLOW_THREADS
    } else {
        rc = f(call);
    }
    if (rc) PyErr_Format(tw_failed, "%s", call->error[0] ? call->error : "a compiled kernel failed");
    return rc;
}

static void call_init(tw_call *call, const tw_found *found, void *const *outputs, const folded *f, arena *a, int64_t threads) {
    memset(call, 0, offsetof(tw_call, error) + 1);
    call->size = sizeof *call;
    call->abi = TW_ABI;
    call->inputs = found->pointer;
    call->outputs = outputs;
    call->sizes = found->sizes;
    call->folded = f ? f->data : NULL;
    call->arena = a->data;
    call->scratch = a->data + a->arena_bytes;
    call->scratch_bytes = a->scratch_bytes;
    call->parallel_for = tw_parallel;
    call->threads = threads;
}

static void outdate(entry *e) {
    e->generation++;
    folded_release(e->folded); /* before others are computed, so that both need not exist at once */
    e->folded = NULL;
}

/* The folded values, computed anew where an input of theirs changed; the caller releases them. Other threads see them only when they
 * are complete, and not at all if an input changed meanwhile: then they are computed once more. */
static folded *refresh(entry *e, const tw_found *found, arena *a, int64_t threads) {
    for (;;) {
        if (changed(e, found)) outdate(e);
        if (e->folded) {
            e->folded->users++;
            return e->folded;
        }
        folded *f = PyMem_Calloc(1, sizeof *f);
        if (!f || !(f->data = tw_aligned((size_t)e->folded_bytes))) {
            PyMem_Free(f);
            return (folded *)PyErr_NoMemory();
        }
        f->users = 1;
        f->generation = e->generation;
        e->folds++;
        tw_call call;
        call_init(&call, found, NULL, f, a, threads);
        if (invoke(e->fold, &call, RELEASE_LOCK_ABOVE + 1)) {
            folded_release(f);
            return NULL;
        }
        if (f->generation == e->generation) {
            if (!e->folded) {
                e->folded = f;
                f->users++;
            }
            return f;
        }
        folded_release(f);
    }
}

static int overlapping(const entry *e, const tw_found *found) {
    for (Py_ssize_t i = 0; i < e->written; i++) {
        Py_ssize_t w = e->write[i];
        char *lo = found->pointer[w], *hi = lo + found->bytes[w];
        for (Py_ssize_t k = 0; k < e->guards.inputs; k++) {
            char *p = found->pointer[k];
            if (k != w && p && p < hi && lo < p + found->bytes[k]) return 1;
        }
    }
    return 0;
}

static PyObject *tensor_make(const output *o, const tw_found *found, PyObject *made, PyObject *shape, PyObject *strides, PyObject *last) {
    if (o->kind == 0) {
        PyObject *stack[] = {shape, strides, last};
        return PyObject_Vectorcall(fn_empty, stack, 2, names_dtype);
    }
    PyObject *stack[] = {o->kind == 1 ? found->tensor[o->of] : PyList_GET_ITEM(made, o->of), shape, strides, last};
    return PyObject_Vectorcall(fn_view, stack, 4, NULL);
}

static PyObject *numbers(const int64_t *values, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(values[i]);
        if (!number) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

/* Takes over what `tw_plan` found of an output, unless the call before had the same. */
static int output_plan(output *o, const int64_t *planned) {
    size_t bytes = (size_t)(2 * o->rank + 1) * sizeof *planned;
    if (o->planned && !memcmp(o->planned, planned, bytes)) return 0;
    PyObject *shape = numbers(planned, o->rank), *strides = numbers(planned + o->rank, o->rank);
    PyObject *last = o->kind ? PyLong_FromLongLong(planned[2 * o->rank]) : Py_NewRef(o->last);
    if (!shape || !strides || !last || (!o->planned && !(o->planned = PyMem_Malloc(bytes)))) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        Py_XDECREF(last);
        return PyErr_NoMemory(), -1;
    }
    Py_SETREF(o->shape, shape);
    Py_SETREF(o->strides, strides);
    Py_SETREF(o->last, last);
    memcpy(o->planned, planned, bytes);
    return 0;
}

/* `*planned` is where `tw_plan` wrote of this output, if it did. */
static PyObject *output_make(output *o, const tw_found *found, PyObject *made, const int64_t **planned) {
    if (o->kind == 3) return Py_NewRef(found->tensor[o->of]);
    if (o->rank >= 0) {
        if (output_plan(o, *planned)) return NULL;
        *planned += 2 * o->rank + 1;
    }
    PyObject *shape = Py_NewRef(o->shape), *strides = Py_NewRef(o->strides), *last = Py_NewRef(o->last); /* another call may replace them */
    PyObject *tensor = tensor_make(o, found, made, shape, strides, last);
    Py_DECREF(shape);
    Py_DECREF(strides);
    Py_DECREF(last);
    return tensor;
}

static PyObject *finish(const entry *e, PyObject *made) {
    if (e->rebuild != Py_None) return PyObject_CallOneArg(e->rebuild, made);
    return Py_NewRef(PyList_GET_ITEM(made, 0));
}

/* Views of a written input are made after the run; new memory before it. */
static PyObject *run_native(entry *e, tw_found *found, const folded *f, arena *a, int64_t threads) {
    void *small[STACK_SLOTS], **outputs = small;
    PyObject *made = PyList_New(e->outputs), *result = NULL;
    if (!made) return NULL;
    if (e->outputs > STACK_SLOTS && !(outputs = PyMem_Calloc((size_t)e->outputs, sizeof *outputs))) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    const int64_t *planned = found->planned;
    for (Py_ssize_t i = 0; i < e->outputs; i++) {
        dl_tensor t;
        PyObject *o = output_make(&e->output[i], found, made, &planned);
        if (!o) goto done;
        PyList_SET_ITEM(made, i, o);
        outputs[i] = NULL;
        if (e->output[i].kind) continue;
        if (tw_describe(o, &t)) goto done;
        outputs[i] = (char *)t.data + t.byte_offset;
    }
    tw_call call;
    call_init(&call, found, outputs, f, a, threads);
    if (e->run && invoke(e->run, &call, e->plan ? RELEASE_LOCK_ABOVE + 1 : e->cost)) goto done; /* the cost is that of other sizes */
    for (Py_ssize_t i = 0; i < e->written; i++) {
        PyObject *bumped = PyObject_CallOneArg(fn_bump, found->tensor[e->write[i]]);
        if (!bumped) goto done;
        Py_DECREF(bumped);
    }
    result = finish(e, made);
done:
    if (outputs != small) PyMem_Free(outputs);
    Py_DECREF(made);
    return result;
}

static PyObject *run_python(entry *e, tw_found *found, const folded *f) {
    PyObject *inputs = PyList_New(e->guards.inputs);
    if (!inputs) return NULL;
    for (Py_ssize_t i = 0; i < e->guards.inputs; i++) {
        PyObject *t = found->tensor[i] ? found->tensor[i] : Py_None;
        PyList_SET_ITEM(inputs, i, Py_NewRef(t));
    }
    PyObject *address = PyLong_FromVoidPtr(f ? f->data : NULL);
    PyObject *sizes = e->guards.symbols ? PyTuple_New(e->guards.symbols) : NULL;
    for (Py_ssize_t i = 0; sizes && i < e->guards.symbols; i++) PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(found->sizes[i]));
    PyObject *made = address && !PyErr_Occurred() ? PyObject_CallFunctionObjArgs(e->runner, inputs, address, sizes, NULL) : NULL;
    Py_XDECREF(address);
    Py_XDECREF(sizes);
    Py_DECREF(inputs);
    if (!made) return NULL;
    PyObject *result = NULL;
    if (PyList_Check(made) && PyList_GET_SIZE(made) > 0)
        result = finish(e, made);
    else if (PyList_Check(made) && e->rebuild != Py_None)
        result = finish(e, made);
    else
        PyErr_SetString(PyExc_TypeError, "a runner returns the list of outputs");
    Py_DECREF(made);
    return result;
}

static PyObject *run(entry *e, tw_found *found) {
    for (Py_ssize_t i = 0; i < e->guards.inputs; i++) Py_XINCREF(found->tensor[i]);
    int64_t threads = thread_count();
    if (e->plan) e->plan(found->sizes, found->planned);
    arena *a = threads < 1 ? NULL : arena_take(e, threads, e->plan ? found->planned : NULL);
    PyObject *result = NULL;
    if (a) {
        folded *f = e->fold ? refresh(e, found, a, threads) : NULL;
        if (f || !e->fold) result = e->runner == Py_None ? run_native(e, found, f, a, threads) : run_python(e, found, f);
        folded_release(f);
        a->next = e->idle;
        e->idle = a;
    }
    for (Py_ssize_t i = 0; i < e->guards.inputs; i++) Py_XDECREF(found->tensor[i]);
    return result;
}

/* Checks the guards and, where they hold, runs. 1 with *result, 0 where a guard fails, -1 on an exception. */
int tw_entry_try(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **result, Py_ssize_t *failed) {
    entry *e = (entry *)self;
    size_t slots = (size_t)e->guards.slots, inputs = (size_t)e->guards.inputs, symbols = (size_t)e->guards.symbols, words = slots + 3 * inputs + symbols + (size_t)e->planned + 1;
    void *small[4 * STACK_SLOTS], **memory = small;
    *failed = -1;
    if (nargs != e->guards.nargs) return 0;
    if (words > 4 * STACK_SLOTS && !(memory = PyMem_Malloc(words * sizeof *memory))) return PyErr_NoMemory(), -1;
    memset(memory + slots, 0, 3 * inputs * sizeof *memory);
    tw_found found = {(PyObject **)memory, memory + slots, (PyObject **)(memory + slots + inputs), NULL, (int64_t *)(memory + slots + 3 * inputs),
                      (int64_t *)(memory + slots + 3 * inputs + symbols)};
    if (e->written) found.bytes = (int64_t *)(memory + slots + 2 * inputs);
    int holds = tw_guards_check(&e->guards, args, nargs, kwnames, &found, failed);
    if (holds == 1 && e->written && overlapping(e, &found)) {
        holds = 0;
        *failed = e->guards.rows; /* one past the table: the overlap check */
    }
    if (holds == 1 && result) holds = (*result = run(e, &found)) ? 1 : -1;
    if (memory != small) PyMem_Free(memory);
    return holds;
}

/* check(args, kwargs) -> None where the guards hold, else the index of the first row that does not (-1: the signature). */
static PyObject *entry_check(entry *e, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    Py_ssize_t failed;
    int holds = tw_entry_try((PyObject *)e, args, nargs, kwnames, NULL, &failed);
    if (holds < 0) return NULL;
    if (holds) Py_RETURN_NONE;
    return PyLong_FromSsize_t(failed);
}

static PyObject *entry_call(entry *e, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    Py_ssize_t failed;
    PyObject *result = NULL;
    int holds = tw_entry_try((PyObject *)e, args, nargs, kwnames, &result, &failed);
    if (holds < 0) return NULL;
    if (holds) return result;
    PyErr_Format(PyExc_RuntimeError, "guard row %zd does not hold for this call", failed);
    return NULL;
}

static PyObject *entry_forget(entry *e, PyObject *unused) {
    (void)unused;
    outdate(e);
    Py_RETURN_NONE;
}

static PyMethodDef entry_methods[] = {
    {"check", (PyCFunction)(void (*)(void))entry_check, METH_FASTCALL | METH_KEYWORDS, "check(*args, **kwargs): None, or the first guard row that fails"},
    {"run", (PyCFunction)(void (*)(void))entry_call, METH_FASTCALL | METH_KEYWORDS, "run(*args, **kwargs): the compiled call; RuntimeError where a guard fails"},
    {"forget", (PyCFunction)entry_forget, METH_NOARGS, "forget(): compute the folded values anew at the next call"},
    {NULL, NULL, 0, NULL},
};

static PyObject *get_data(entry *e, void *c) { (void)c; return Py_NewRef(e->data); }
static PyObject *get_folds(entry *e, void *c) { (void)c; return PyLong_FromSsize_t(e->folds); }
static PyGetSetDef entry_getset[] = {
    {"data", (getter)get_data, NULL, "the owner's object", NULL},
    {"folds", (getter)get_folds, NULL, "how often the folded values were computed", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject tw_entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tilewright.native.Entry",
    .tp_basicsize = sizeof(entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A compiled graph behind its guards.",
    .tp_weaklistoffset = offsetof(entry, weakrefs),
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_methods = entry_methods,
    .tp_getset = entry_getset,
};

/* --- segments of a graph that also calls eager torch --- */

static void **pointers(PyObject *tuple) {
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    void **p = PyMem_Calloc((size_t)n + 1, sizeof *p);
    for (Py_ssize_t i = 0; p && i < n; i++) p[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, i));
    return p;
}

/* run_segment(address, inputs, outputs, folded, arena, scratch_bytes, sizes): `inputs` and `outputs` are tuples of addresses. */
static PyObject *run_segment(PyObject *self, PyObject *args) {
    Py_ssize_t address, folded_address, arena_address, scratch_bytes;
    PyObject *inputs, *outputs, *given;
    (void)self;
    if (!PyArg_ParseTuple(args, "nO!O!nnnO!", &address, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &folded_address, &arena_address,
                          &scratch_bytes, &PyTuple_Type, &given))
        return NULL;
    int64_t threads = thread_count();
    if (threads < 1) return NULL;
    scratch_bytes = aligned(scratch_bytes);
    int64_t *sizes = PyMem_Calloc((size_t)PyTuple_GET_SIZE(given) + 1, sizeof *sizes);
    for (Py_ssize_t i = 0; sizes && i < PyTuple_GET_SIZE(given); i++) sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given, i));
    void **in = pointers(inputs), **out = pointers(outputs);
    char *scratch = tw_aligned((size_t)(scratch_bytes * threads));
    int rc = -1;
    if (in && out && sizes && scratch && !PyErr_Occurred()) {
        tw_call call = {.size = sizeof call, .abi = TW_ABI, .inputs = in, .outputs = out, .folded = (char *)folded_address, .arena = (char *)arena_address,
                        .scratch = scratch, .scratch_bytes = scratch_bytes, .sizes = sizes, .parallel_for = tw_parallel, .threads = threads};
        rc = invoke((int (*)(const tw_call *))address, &call, RELEASE_LOCK_ABOVE + 1);
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    PyMem_Free(in);
    PyMem_Free(out);
    PyMem_Free(sizes);
    tw_aligned_free(scratch);
    if (rc) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_bypass", tw_set_bypass, METH_O, "set_bypass(on): where on, every call of every dispatcher is a miss"},
    {"configure", configure, METH_VARARGS, "configure(empty_strided, as_strided, increment_version, get_num_threads): torch's functions"},
    {"set_exchange", tw_set_exchange, METH_O, "set_exchange(torch.Tensor): the type whose DLPack exchange table is used"},
    {"set_openmp", tw_set_openmp, METH_VARARGS, "set_openmp(GOMP_parallel, omp_get_thread_num): addresses, or zeros"},
    {"profile", tw_profile, METH_VARARGS, "profile(launches): time that many launches from here on (0: stop); the nanoseconds timed so far"},
    {"segment", (PyCFunction)(void (*)(void))tw_segment, METH_FASTCALL | METH_KEYWORDS, "segment(choose, function, *args, **kwargs): call it with the frame hook on"},
    {"go_on", (PyCFunction)(void (*)(void))tw_go_on, METH_FASTCALL, "go_on(dispatcher, *args): returned by an entry: the call that is next"},
    {"skip", tw_skip, METH_O, "skip(code): frames of this code are never offered by the frame hook"},
    {"run_segment", run_segment, METH_VARARGS, "run_segment(address, inputs, outputs, folded, arena, scratch_bytes, sizes)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "tilewright.native", .m_doc = "Guards and launches of compiled graphs.", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_native(void) {
    if (PyType_Ready(&tw_entry_type) || PyType_Ready(&tw_dispatcher_type) || tw_dispatch_setup() || tw_parallel_setup() || tw_hook_setup()) return NULL;
    PyObject *m = PyModule_Create(&definition);
    if (!m) return NULL;
    tw_failed = PyErr_NewException("tilewright.native.Failed", PyExc_RuntimeError, NULL);
    if (!tw_failed || PyModule_AddObjectRef(m, "Failed", tw_failed)) Py_CLEAR(m);
    if (!m) return NULL;
    if (PyModule_AddObjectRef(m, "Entry", (PyObject *)&tw_entry_type) || PyModule_AddObjectRef(m, "Dispatcher", (PyObject *)&tw_dispatcher_type)) Py_CLEAR(m);
    return m;
}
