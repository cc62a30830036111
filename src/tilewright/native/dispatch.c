/* Dispatcher: the callable that tries entries in turn, the one that served last first.
 *
 * A call that no entry serves goes to `miss`, one whose compiled run fails an assertion to `failed`. An entry that ends where the
 * graph breaks returns `go_on(dispatcher, *args)`: the call that is next, made when the entry is left, so that they do not nest.
 */
#include "native.h"

#include <frameobject.h>
#include <string.h>

static int bypass; /* whether every call is a miss */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *entries; /* a tuple, replaced as a whole: the one that served most recently first */
    PyObject *miss;    /* called with (args, kwargs) where no entry serves */
    PyObject *failed;  /* called with (args, kwargs) where a compiled run fails an assertion */
    PyObject *last;    /* the entry that served last, or None */
} dispatcher;

typedef struct {
    PyObject_HEAD
    PyObject *next; /* a dispatcher */
    PyObject *args; /* a tuple */
} following;

static void following_dealloc(following *f) {
    Py_XDECREF(f->next);
    Py_XDECREF(f->args);
    PyObject_Free(f);
}

static PyTypeObject following_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tilewright.native.Following",
    .tp_basicsize = sizeof(following),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The call that a dispatcher makes when the entry that returned it is left.",
    .tp_dealloc = (destructor)following_dealloc,
};

/* go_on(dispatcher, *args) */
PyObject *tw_go_on(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (nargs < 1 || !PyObject_TypeCheck(args[0], &tw_dispatcher_type)) return PyErr_Format(PyExc_TypeError, "go_on(dispatcher, *args)");
    following *f = PyObject_New(following, &following_type);
    if (!f) return NULL;
    f->next = Py_NewRef(args[0]);
    if (!(f->args = PyTuple_New(nargs - 1))) return Py_DECREF(f), NULL;
    for (Py_ssize_t i = 1; i < nargs; i++) PyTuple_SET_ITEM(f->args, i - 1, Py_NewRef(args[i]));
    return (PyObject *)f;
}

int tw_dispatch_setup(void) { return PyType_Ready(&following_type); }

static PyObject *keywords(PyObject *const *values, PyObject *kwnames) {
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict && kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(kwnames, i), values[i])) Py_CLEAR(dict);
    return dict;
}

static PyObject *hand_over(PyObject *to, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    PyObject *positional = PyTuple_New(nargs), *named = keywords(args + nargs, kwnames), *result = NULL;
    for (Py_ssize_t i = 0; positional && i < nargs; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    if (positional && named) result = PyObject_CallFunctionObjArgs(to, positional, named, NULL);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

static void move_to_front(dispatcher *d, PyObject *entries, Py_ssize_t at) {
    Py_ssize_t n = PyTuple_GET_SIZE(entries);
    PyObject *moved = d->entries == entries ? PyTuple_New(n) : NULL; /* else another thread has replaced them meanwhile */
    if (!moved) {
        PyErr_Clear();
        return;
    }
    for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(moved, i, Py_NewRef(PyTuple_GET_ITEM(entries, i == 0 ? at : i <= at ? i - 1 : i)));
    Py_SETREF(d->entries, moved);
}

/* Whether the frame of a traceback is code of this package: 1 its own, 2 generated between two graphs, at the user's line. */
static int own_frame(PyTracebackObject *tb) {
    PyObject *globals = PyFrame_GetGlobals(tb->tb_frame), *name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
    int own = !name ? 2 : PyUnicode_Check(name) && !strncmp(PyUnicode_AsUTF8(name), "tilewright.", 11);
    Py_XDECREF(globals);
    return own;
}

/* Whether a frame is the one that calls the program in eager: an error that ends there is of the call itself. */
static int calls_eager(PyTracebackObject *tb) {
    PyCodeObject *code = PyFrame_GetCode(tb->tb_frame);
    int same = PyUnicode_CompareWithASCIIString(code->co_name, "_eager") == 0;
    Py_DECREF(code);
    return same;
}

/* Takes our frames off the start of the raised exception's traceback, so that it reads as in eager. What ends in our own code is ours. */
static void tidy_traceback(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyTracebackObject *tb = (PyTracebackObject *)traceback;
    int own = 0;
    while (tb && (own = own_frame(tb)) && (own == 1 || tb->tb_next)) {
        if (!tb->tb_next && !calls_eager(tb)) break;
        tb = tb->tb_next;
    }
    if (tb != (PyTracebackObject *)traceback && !(tb && own == 1)) {
        Py_XINCREF(tb);
        Py_XDECREF(traceback);
        traceback = (PyObject *)tb;
    }
    PyErr_Restore(type, value, traceback);
}

static PyObject *dispatch(dispatcher *d, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    Py_ssize_t failed;
    PyObject *entries = Py_NewRef(d->entries), *result = NULL;
    int holds = 0;
    for (Py_ssize_t i = 0; !holds && !bypass && i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *e = PyTuple_GET_ITEM(entries, i);
        holds = tw_entry_try(e, args, nargs, kwnames, &result, &failed);
        if (holds > 0 && d->last != e) Py_XSETREF(d->last, Py_NewRef(e));
        if (holds > 0 && i > 0) move_to_front(d, entries, i);
    }
    Py_DECREF(entries);
    if (holds > 0) return result;
    if (holds < 0) {
        if (d->failed == Py_None || !PyErr_ExceptionMatches(tw_failed)) return NULL;
        PyErr_Clear();
    }
    return hand_over(holds ? d->failed : d->miss, args, nargs, kwnames);
}

static PyObject *dispatcher_vectorcall(dispatcher *d, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *result = dispatch(d, args, PyVectorcall_NARGS(nargsf), kwnames);
    while (result && Py_IS_TYPE(result, &following_type)) {
        following *f = (following *)result;
        Py_ssize_t n = PyTuple_GET_SIZE(f->args);
        result = PyErr_CheckSignals() ? NULL : dispatch((dispatcher *)f->next, ((PyTupleObject *)f->args)->ob_item, n, NULL);
        Py_DECREF(f);
    }
    if (!result) tidy_traceback();
    return result;
}

/* set_bypass(on): where on, no entry of any dispatcher is tried. */
PyObject *tw_set_bypass(PyObject *self, PyObject *on) {
    (void)self;
    int truth = PyObject_IsTrue(on);
    if (truth < 0) return NULL;
    bypass = truth;
    Py_RETURN_NONE;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; /* a subclass's __init__ takes them */
    dispatcher *d = (dispatcher *)type->tp_alloc(type, 0);
    if (!d) return NULL;
    d->vectorcall = (vectorcallfunc)dispatcher_vectorcall;
    d->miss = Py_NewRef(Py_None);
    d->failed = Py_NewRef(Py_None);
    d->last = Py_NewRef(Py_None);
    if (!(d->entries = PyTuple_New(0))) Py_CLEAR(d);
    return (PyObject *)d;
}

static int dispatcher_traverse(dispatcher *d, visitproc visit, void *arg) {
    Py_VISIT(d->entries);
    Py_VISIT(d->miss);
    Py_VISIT(d->failed);
    Py_VISIT(d->last);
    return 0;
}

static int dispatcher_clear(dispatcher *d) {
    Py_CLEAR(d->entries);
    Py_CLEAR(d->miss);
    Py_CLEAR(d->failed);
    Py_CLEAR(d->last);
    return 0;
}

static void dispatcher_dealloc(dispatcher *d) {
    PyObject_GC_UnTrack(d);
    dispatcher_clear(d);
    Py_TYPE(d)->tp_free((PyObject *)d);
}

static PyObject *get_entries(dispatcher *d, void *c) { (void)c; return Py_NewRef(d->entries); }
static int set_entries(dispatcher *d, PyObject *value, void *c) {
    (void)c;
    if (!value || !PyTuple_Check(value)) return PyErr_SetString(PyExc_TypeError, "entries: a tuple of Entry expected"), -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(value, i), &tw_entry_type)) return PyErr_SetString(PyExc_TypeError, "entries: a tuple of Entry expected"), -1;
    Py_XSETREF(d->entries, Py_NewRef(value));
    return 0;
}
static PyObject *get_last(dispatcher *d, void *c) { (void)c; return Py_NewRef(d->last); }
static int set_last(dispatcher *d, PyObject *value, void *c) {
    (void)c;
    Py_XSETREF(d->last, Py_NewRef(value ? value : Py_None));
    return 0;
}
static PyObject *get_miss(dispatcher *d, void *c) { (void)c; return Py_NewRef(d->miss); }
static int set_miss(dispatcher *d, PyObject *value, void *c) {
    (void)c;
    Py_XSETREF(d->miss, Py_NewRef(value ? value : Py_None));
    return 0;
}
static PyObject *get_failed(dispatcher *d, void *c) { (void)c; return Py_NewRef(d->failed); }
static int set_failed(dispatcher *d, PyObject *value, void *c) {
    (void)c;
    Py_XSETREF(d->failed, Py_NewRef(value ? value : Py_None));
    return 0;
}
static PyGetSetDef dispatcher_getset[] = {
    {"failed", (getter)get_failed, (setter)set_failed, "called with (args, kwargs) where a compiled run fails an assertion", NULL},
    {"miss", (getter)get_miss, (setter)set_miss, "called with (args, kwargs) where no entry serves", NULL},
    {"entries", (getter)get_entries, (setter)set_entries, "the entries tried in turn, a tuple", NULL},
    {"last", (getter)get_last, (setter)set_last, "the entry that served the last call, or None", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject tw_dispatcher_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tilewright.native.Dispatcher",
    .tp_basicsize = sizeof(dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Calls the first entry whose guards hold, else `miss(args, kwargs)`.",
    .tp_new = dispatcher_new,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(dispatcher, vectorcall),
    .tp_getset = dispatcher_getset,
};
