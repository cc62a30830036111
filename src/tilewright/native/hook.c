/* The frame hook (PEP 523): on in a thread only while a native segment runs in it, so that Python functions which C code calls
 * there are run compiled.
 *
 * `segment(choose, f, *args, **kwargs)` calls f. A frame of a plain function that begins meanwhile is offered: choose(function,
 * args, kwargs) gives what is called in its place, or None; None for good where `skip(code)` said so. What is chosen runs without the hook, until
 * it comes to a segment of its own. This is the one place that knows CPython's frames; of a version that it does not know, a
 * segment is a plain call.
 */
#define Py_BUILD_CORE 1
#include "native.h"

#if PY_VERSION_HEX < 0x030E0000
#include <internal/pycore_frame.h>

typedef struct _PyInterpreterFrame frame;

static _Thread_local PyObject *choosing; /* asked for each frame of this thread; NULL: the hook does nothing here */
static Py_ssize_t segments;              /* in all threads; under the interpreter's lock, as all here */
static _PyFrameEvalFunction before;      /* the evaluator that the first segment found */
static PyObject *skipped;                /* a dictionary: addresses of code objects that are never chosen, each with a weak reference */
#define MOST_SKIPPED 20000

static PyCodeObject *code_of(frame *f) {
#if PY_VERSION_HEX < 0x030D0000
    return f->f_code;
#else
    return PyCode_Check(f->f_executable) ? (PyCodeObject *)f->f_executable : NULL;
#endif
}

static PyObject *function_of(frame *f) {
#if PY_VERSION_HEX < 0x030C0000
    return (PyObject *)f->f_func;
#else
    return f->f_funcobj;
#endif
}

static int is_beginning(frame *f, PyCodeObject *code) {
#if PY_VERSION_HEX < 0x030D0000
    return f->prev_instr == _PyCode_CODE(code) - 1;
#else
    return f->instr_ptr == _PyCode_CODE(code);
#endif
}

/* The arguments with which the frame was entered, as positional ones and a dictionary. */
static int arguments(frame *f, PyCodeObject *code, PyObject **args, PyObject **kwargs) {
    int varargs = !!(code->co_flags & CO_VARARGS), n = code->co_argcount, at = n + code->co_kwonlyargcount;
    PyObject *rest = varargs ? f->localsplus[at] : NULL;
    Py_ssize_t more = rest ? PyTuple_GET_SIZE(rest) : 0;
    *kwargs = NULL;
    if (!(*args = PyTuple_New(n + more))) return -1;
    for (Py_ssize_t i = 0; i < n + more; i++)
        PyTuple_SET_ITEM(*args, i, Py_NewRef(i < n ? f->localsplus[i] : PyTuple_GET_ITEM(rest, i - n)));
    if (!(*kwargs = PyDict_New())) return -1;
    for (int i = n; i < at; i++)
        if (PyDict_SetItem(*kwargs, PyTuple_GET_ITEM(code->co_localsplusnames, i), f->localsplus[i])) return -1;
    return code->co_flags & CO_VARKEYWORDS ? PyDict_Update(*kwargs, f->localsplus[at + varargs]) : 0;
}

/* End a frame that shall not run: its caller (3.11) or its evaluator (from 3.12 on) clears it. */
static void leave(PyThreadState *ts, frame *f) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *raised = PyErr_GetRaisedException();
    PyErr_SetNone(PyExc_RuntimeError); /* thrown into the frame, which has no handler at its beginning */
    Py_XDECREF(_PyEval_EvalFrameDefault(ts, f, 1));
    PyErr_Clear();
    if (raised) PyErr_SetRaisedException(raised);
#else
    (void)ts, (void)f;
#endif
}

static PyObject *evaluate(PyThreadState *ts, frame *f, int thrown) {
    return before && before != _PyEval_EvalFrameDefault ? before(ts, f, thrown) : _PyEval_EvalFrameDefault(ts, f, thrown);
}

static int is_skipped(PyCodeObject *code) {
    PyObject *key = PyLong_FromVoidPtr(code), *ref = key ? PyDict_GetItem(skipped, key) : NULL, *found = NULL;
    Py_XDECREF(key);
    if (!key || !ref) return !key;
#if PY_VERSION_HEX < 0x030D0000
    found = Py_XNewRef(PyWeakref_GetObject(ref));
#else
    if (PyWeakref_GetRef(ref, &found) < 0) PyErr_Clear();
#endif
    Py_XDECREF(found);
    return found == (PyObject *)code; /* else another code object was there before */
}

static PyObject *hook(PyThreadState *ts, frame *f, int thrown) {
    PyCodeObject *code = choosing && !thrown ? code_of(f) : NULL;
    int plain = code && (code->co_flags & (CO_OPTIMIZED | CO_NEWLOCALS)) == (CO_OPTIMIZED | CO_NEWLOCALS);
    if (!plain || code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR) || !is_beginning(f, code)) return evaluate(ts, f, thrown);
    if (is_skipped(code)) return evaluate(ts, f, thrown);
    PyObject *choose = choosing, *args = NULL, *kwargs = NULL, *result = NULL;
    choosing = NULL;
    PyObject *chosen = arguments(f, code, &args, &kwargs) ? NULL : PyObject_CallFunctionObjArgs(choose, function_of(f), args, kwargs, NULL);
    if (!chosen || chosen == Py_None) {
        PyErr_Clear();
        Py_XDECREF(chosen);
        Py_XDECREF(args);
        Py_XDECREF(kwargs);
        choosing = choose;
        return evaluate(ts, f, thrown);
    }
    result = PyObject_Call(chosen, args, kwargs);
    Py_DECREF(chosen);
    Py_DECREF(args);
    Py_DECREF(kwargs);
    leave(ts, f);
    choosing = choose;
    return result;
}

PyObject *tw_segment(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    (void)self;
    if (nargs < 2) return PyErr_Format(PyExc_TypeError, "segment(choose, function, *args, **kwargs)");
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    PyObject *outer = choosing;
    if (segments++ == 0) {
        before = _PyInterpreterState_GetEvalFrameFunc(interpreter);
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
    }
    choosing = Py_NewRef(args[0]);
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, nargs - 2, kwnames);
    Py_DECREF(args[0]);
    choosing = outer;
    if (--segments == 0 && _PyInterpreterState_GetEvalFrameFunc(interpreter) == hook) _PyInterpreterState_SetEvalFrameFunc(interpreter, before);
    return result;
}

PyObject *tw_skip(PyObject *self, PyObject *code) {
    (void)self;
    if (PyDict_GET_SIZE(skipped) >= MOST_SKIPPED) PyDict_Clear(skipped);
    PyObject *key = PyLong_FromVoidPtr(code), *ref = key ? PyWeakref_NewRef(code, NULL) : NULL;
    int failed = !ref || PyDict_SetItem(skipped, key, ref);
    Py_XDECREF(ref);
    Py_XDECREF(key);
    return failed ? NULL : Py_NewRef(Py_None);
}

int tw_hook_setup(void) { return skipped || (skipped = PyDict_New()) ? 0 : -1; }

#else

PyObject *tw_segment(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    (void)self;
    if (nargs < 2) return PyErr_Format(PyExc_TypeError, "segment(choose, function, *args, **kwargs)");
    return PyObject_Vectorcall(args[1], args + 2, nargs - 2, kwnames);
}

PyObject *tw_skip(PyObject *self, PyObject *code) {
    (void)self, (void)code;
    Py_RETURN_NONE;
}

int tw_hook_setup(void) { return 0; }
#endif
