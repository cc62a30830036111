/* Arithmetic on the sizes of a call, for guards: small programs in postfix over a stack of 64-bit integers.
 *
 * A program is a tuple. An int is pushed; "$k" pushes the size of that number; an operator takes two. `//` and `%` mean what they
 * mean in Python; a comparison gives 1 or 0. A program that leaves 64 bits, or divides by zero, has no result: nothing wraps.
 */
#include "native.h"

#include <string.h>

#define DEPTH 32 /* of the stack: a longer expression is refused when it is made */

enum { PUSH, SYMBOL, ADD, SUB, MUL, FLOORDIV, MOD, MIN, MAX, EQUAL, DIFFERENT, LESS, AT_MOST, KINDS };
static const char *const NAMES[] = {"", "$", "+", "-", "*", "//", "%", "min", "max", "==", "!=", "<", "<="};

static int step_init(tw_step *s, PyObject *item, const char *bound, Py_ssize_t symbols) {
    if (PyLong_CheckExact(item)) {
        s->op = PUSH;
        s->value = PyLong_AsLongLong(item);
        return PyErr_Occurred() ? -1 : 0;
    }
    const char *name = PyUnicode_Check(item) ? PyUnicode_AsUTF8(item) : "";
    if (!name) return -1;
    if (name[0] == '$') {
        char *end;
        long k = strtol(name + 1, &end, 10);
        s->op = SYMBOL;
        s->value = k;
        if (name[1] && !*end && k >= 0 && k < symbols && bound[k]) return 0;
        PyErr_Format(PyExc_ValueError, "no row has read the size %R", item);
        return -1;
    }
    for (s->op = ADD; s->op < KINDS; s->op++)
        if (!strcmp(name, NAMES[s->op])) return 0;
    PyErr_Format(PyExc_ValueError, "an int, a size such as '$0' or an operator expected, got %R", item);
    return -1;
}

tw_program *tw_program_new(PyObject *spec, const char *bound, Py_ssize_t symbols) {
    if (!PyTuple_Check(spec)) return PyErr_Format(PyExc_TypeError, "a program is a tuple, got %R", spec), NULL;
    Py_ssize_t steps = PyTuple_GET_SIZE(spec), depth = 0, deepest = 0, least = 1;
    tw_program *p = PyMem_Calloc(1, sizeof *p + (size_t)steps * sizeof(tw_step));
    if (!p) return (tw_program *)PyErr_NoMemory();
    p->steps = steps;
    for (Py_ssize_t i = 0; i < steps; i++) {
        if (step_init(&p->step[i], PyTuple_GET_ITEM(spec, i), bound, symbols)) goto fail;
        depth += p->step[i].op <= SYMBOL ? 1 : -1;
        if (depth > deepest) deepest = depth;
        if (depth < least) least = depth;
    }
    if (depth == 1 && least == 1 && deepest <= DEPTH) return p;
    PyErr_Format(PyExc_ValueError, "not one expression of at most %d operands at a time: %R", DEPTH, spec);
fail:
    PyMem_Free(p);
    return NULL;
}

static int divide(int op, int64_t a, int64_t b, int64_t *result) {
    if (!b || (a == INT64_MIN && b == -1)) return 0;
    int64_t rest = a % b, up = rest && (rest < 0) != (b < 0);
    *result = op == FLOORDIV ? a / b - up : rest + (up ? b : 0);
    return 1;
}

static int apply(int op, int64_t a, int64_t b, int64_t *result) {
    switch (op) {
    case ADD: return !__builtin_add_overflow(a, b, result);
    case SUB: return !__builtin_sub_overflow(a, b, result);
    case MUL: return !__builtin_mul_overflow(a, b, result);
    case FLOORDIV: case MOD: return divide(op, a, b, result);
    case MIN: *result = a < b ? a : b; return 1;
    case MAX: *result = a > b ? a : b; return 1;
    case EQUAL: *result = a == b; return 1;
    case DIFFERENT: *result = a != b; return 1;
    case LESS: *result = a < b; return 1;
    default: *result = a <= b; return 1;
    }
}

int tw_program_run(const tw_program *p, const int64_t *sizes, int64_t *result) {
    int64_t stack[DEPTH];
    Py_ssize_t top = 0;
    for (Py_ssize_t i = 0; i < p->steps; i++) {
        const tw_step *s = &p->step[i];
        if (s->op <= SYMBOL) {
            stack[top++] = s->op == PUSH ? s->value : sizes[s->value];
            continue;
        }
        top--;
        if (!apply(s->op, stack[top - 1], stack[top], &stack[top - 1])) return 0;
    }
    *result = stack[0];
    return 1;
}
