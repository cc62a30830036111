/* Guards: a straight-line table of rows over a call's arguments and over objects that were read while recording.
 *
 * Slots 0..nargs-1 hold the positional arguments, then the keyword arguments in `kwnames` order. A row either derives
 * a new slot from an earlier one or tests one; the first test that fails ends the check.
 */
#include "native.h"

#include <string.h>

static const char *const NAMES[] = {"const", "get", "item", "dict", "attr", "cell", "type", "is", "same", "eq", "len", "state",
                                    "absent", "keys", "class", "differ", "pass", "code", "int_symbol", "holds", "tensor", "symbol", "size", "stride"};

static const dl_exchange *exchange;
static PyObject *str_requires_grad, *str_defaults, *str_kwdefaults;
static PyTypeObject *tensor_type;

/* set_exchange(type): torch.Tensor, whose `__dlpack_c_exchange_api__` is used. */
PyObject *tw_set_exchange(PyObject *self, PyObject *type) {
    (void)self;
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"); /* kept: the table must stay */
    if (!capsule) return NULL;
    const dl_exchange *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!table) return NULL;
    if (table->major != 1 || !table->describe) {
        PyErr_Format(PyExc_ImportError, "DLPack exchange table of major version 1 expected, got %u", table->major);
        return NULL;
    }
    exchange = table;
    Py_XSETREF(tensor_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

int tw_describe(PyObject *tensor, dl_tensor *out) { return exchange->describe(tensor, out); }

static tw_meta *meta_new(PyObject *spec, Py_ssize_t inputs) {
    /* (type, input, code, bits, device_type, device_id, requires_grad | None, shape, strides) */
    PyObject *type, *grad, *shape, *strides;
    int input, code, bits, device, id;
    if (!PyArg_ParseTuple(spec, "OiiiiiOO!O!", &type, &input, &code, &bits, &device, &id, &grad, &PyTuple_Type, &shape, &PyTuple_Type, &strides))
        return NULL;
    Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(strides) != ndim || input >= inputs || (type != Py_None && !PyType_Check(type))) {
        PyErr_SetString(PyExc_ValueError, "tensor row: shape and strides of one length, a type and a valid input index expected");
        return NULL;
    }
    tw_meta *m = PyMem_Calloc(1, sizeof *m);
    if (!m) return (tw_meta *)PyErr_NoMemory();
    m->shape = PyMem_Calloc((size_t)(2 * ndim + 1), sizeof(int64_t));
    m->type = type == Py_None ? NULL : (PyTypeObject *)Py_NewRef(type);
    m->dtype = (dl_dtype){(uint8_t)code, (uint8_t)bits, 1};
    m->device = (dl_device){device, id};
    m->ndim = (int32_t)ndim;
    m->requires_grad = grad == Py_None ? -1 : (int8_t)PyObject_IsTrue(grad);
    m->input = input;
    for (Py_ssize_t i = 0; m->shape && i < 2 * ndim; i++) {
        PyObject *n = i < ndim ? PyTuple_GET_ITEM(shape, i) : PyTuple_GET_ITEM(strides, i - ndim);
        m->shape[i] = n == Py_None ? TW_ANY : PyLong_AsLongLong(n);
    }
    return m;
}

/* ("symbol", slot, dim, k): sizes[k] is the tensor's shape[dim] | ("int_symbol", slot, k): the exact int | ("size", slot, dim, program),
 * ("stride", slot, dim, program): what shape or stride of a dimension equals, the latter where there is more than one element
 * | ("holds", program): it is not 0. A program is a tuple in postfix, see sizes.c. */
static int size_row_init(tw_row *r, PyObject *spec, char *bound, Py_ssize_t symbols) {
    PyObject *last = PyTuple_GET_ITEM(spec, PyTuple_GET_SIZE(spec) - 1);
    if (r->op == TW_SYMBOL || r->op == TW_SIZE || r->op == TW_STRIDE) {
        long dim = PyLong_AsLong(PyTuple_GET_ITEM(spec, 2));
        if (dim < 0 || dim > INT16_MAX) return PyErr_Occurred() ? -1 : (PyErr_Format(PyExc_ValueError, "no dimension of a tensor: %R", spec), -1);
        r->dim = (int16_t)dim;
    }
    if (r->op == TW_SYMBOL || r->op == TW_INT_SYMBOL) {
        r->n = PyLong_AsSsize_t(last);
        if (r->n >= 0 && r->n < symbols && !bound[r->n]) return bound[r->n] = 1, 0;
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a size is read once, and sizes are numbered from 0 on: %R", spec);
        return -1;
    }
    return (r->program = tw_program_new(last, bound, symbols)) ? 0 : -1;
}

/* How many sizes the rows read: no row may read one with a number beyond the count of such rows. */
static Py_ssize_t count_symbols(PyObject *rows) {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i), *kind = PyTuple_Check(row) && PyTuple_GET_SIZE(row) ? PyTuple_GET_ITEM(row, 0) : NULL;
        if (kind && PyUnicode_Check(kind) && (!PyUnicode_CompareWithASCIIString(kind, NAMES[TW_SYMBOL]) || !PyUnicode_CompareWithASCIIString(kind, NAMES[TW_INT_SYMBOL])))
            count++;
    }
    return count;
}

/* The number of a row's items, its kind included. */
static Py_ssize_t row_length(int op) {
    switch (op) {
    case TW_CELL: case TW_DICT: case TW_HOLDS: return 2;
    case TW_STATE: case TW_SYMBOL: case TW_SIZE: case TW_STRIDE: return 4;
    default: return 3;
    }
}

static int row_init(tw_row *r, PyObject *spec, Py_ssize_t slots, Py_ssize_t inputs, char *bound, Py_ssize_t symbols) {
    /* ("const", object) | ("get", slot, key) | ("item", slot, i) | ("cell", slot)
     * | ("dict", slot[, type]): an instance's __dict__, and exactly its type | ("attr", slot, name): an attribute that the object itself keeps alive (a __slots__ member)
     * | ("type", slot, type) | ("is", slot, object) | ("same", slot, other slot) | ("differ", slot, other slot) | ("eq", slot, object)
     * | ("len", slot, n) | ("tensor", slot, meta) | ("state", callable, argument | None, expected) | ("absent", slot, key)
     * | ("keys", slot, tuple): a dict's keys in their order | ("code", slot, code): a function's | ("pass", slot, input): hand the object
     * itself to the runner | ("class", type, ((name, value) | (name,), ...)): what looking the names up in a class finds, or that it finds nothing */
    const char *name = PyTuple_Check(spec) && PyTuple_GET_SIZE(spec) > 1 ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(spec, 0)) : NULL;
    r->op = -1;
    for (int k = 0; name && k < TW_KINDS; k++)
        if (!strcmp(name, NAMES[k])) r->op = (int16_t)k;
    if (r->op < 0) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "unknown guard row %R", spec);
        return -1;
    }
    if (r->op == TW_CONST) {
        r->a = Py_NewRef(PyTuple_GET_ITEM(spec, 1));
        return 0;
    }
    if (PyTuple_GET_SIZE(spec) != row_length(r->op) && !(r->op == TW_DICT && PyTuple_GET_SIZE(spec) == 3)) {
        PyErr_Format(PyExc_ValueError, "guard row of the wrong length: %R", spec);
        return -1;
    }
    PyObject *last = PyTuple_GET_ITEM(spec, PyTuple_GET_SIZE(spec) - 1);
    if (r->op == TW_STATE) {
        r->a = Py_NewRef(PyTuple_GET_ITEM(spec, 1));
        PyObject *argument = PyTuple_GET_ITEM(spec, 2);
        r->b = Py_BuildValue("(OO)", argument, last);
        return r->b ? 0 : -1;
    }
    if (r->op == TW_CLASS) {
        r->a = Py_NewRef(PyTuple_GET_ITEM(spec, 1));
        r->b = Py_NewRef(last);
        if (PyType_Check(r->a) && PyTuple_Check(last)) return 0;
        PyErr_Format(PyExc_ValueError, "class row: a type and a tuple expected, got %R", spec);
        return -1;
    }
    if (r->op == TW_HOLDS) return size_row_init(r, spec, bound, symbols);
    r->slot = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(spec, 1));
    if (PyErr_Occurred()) return -1;
    if (r->slot < 0 || r->slot >= slots) {
        PyErr_Format(PyExc_ValueError, "guard row reads slot %d of %zd: %R", r->slot, slots, spec);
        return -1;
    }
    if (r->op == TW_ITEM || r->op == TW_LEN || r->op == TW_SAME || r->op == TW_DIFFER || r->op == TW_PASS) {
        r->n = PyLong_AsSsize_t(last);
        if (r->op == TW_PASS && (r->n < 0 || r->n >= inputs)) PyErr_Format(PyExc_ValueError, "pass row: no input %zd", r->n);
        if ((r->op == TW_SAME || r->op == TW_DIFFER) && (r->n < 0 || r->n >= slots)) PyErr_Format(PyExc_ValueError, "guard row reads slot %zd of %zd: %R", r->n, slots, spec);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (r->op == TW_CELL || (r->op == TW_DICT && PyTuple_GET_SIZE(spec) == 2)) return 0;
    if (r->op == TW_TENSOR) return (r->meta = meta_new(last, inputs)) ? 0 : -1;
    if (r->op >= TW_INT_SYMBOL) return size_row_init(r, spec, bound, symbols);
    r->a = Py_NewRef(last);
    return 0;
}

int tw_guards_init(tw_guards *g, Py_ssize_t nargs, PyObject *kwnames, PyObject *rows, Py_ssize_t inputs) {
    if (!str_requires_grad) {
        str_defaults = PyUnicode_InternFromString("__defaults__");
        str_kwdefaults = PyUnicode_InternFromString("__kwdefaults__");
        if (!str_defaults || !str_kwdefaults || !(str_requires_grad = PyUnicode_InternFromString("requires_grad"))) return -1;
    }
    g->nargs = nargs;
    g->inputs = inputs;
    g->kwnames = Py_NewRef(kwnames);
    g->slots = nargs + PyTuple_GET_SIZE(kwnames);
    g->symbols = count_symbols(rows);
    g->row = PyMem_Calloc((size_t)PyList_GET_SIZE(rows) + 1, sizeof(tw_row));
    char *bound = PyMem_Calloc((size_t)g->symbols + 1, 1);
    int failed = !g->row || !bound;
    if (failed) PyErr_NoMemory();
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(rows); i++) {
        g->rows = i + 1;
        g->row[i].number = (int32_t)i;
        failed = row_init(&g->row[i], PyList_GET_ITEM(rows, i), g->slots, inputs, bound, g->symbols);
        if (!failed && g->row[i].op <= TW_CELL) g->row[i].fills = (int32_t)g->slots++;
    }
    PyMem_Free(bound);
    return failed ? -1 : tw_groups_init(g);
}

void tw_guards_clear(tw_guards *g) {
    tw_groups_clear(g);
    for (Py_ssize_t i = 0; i < g->rows; i++) {
        tw_row *r = &g->row[i];
        Py_CLEAR(r->a);
        Py_CLEAR(r->b);
        if (r->op == TW_TENSOR && r->meta) {
            Py_CLEAR(r->meta->type);
            PyMem_Free(r->meta->shape);
        }
        PyMem_Free(r->meta); /* or the program */
        r->meta = NULL;
    }
    PyMem_Free(g->row);
    g->row = NULL;
    g->rows = 0;
    Py_CLEAR(g->kwnames);
}

int tw_guards_traverse(tw_guards *g, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < g->rows; i++) {
        Py_VISIT(g->row[i].a);
        Py_VISIT(g->row[i].b);
        if (g->row[i].op == TW_TENSOR && g->row[i].meta) Py_VISIT(g->row[i].meta->type);
    }
    return 0;
}

static int same_names(PyObject *expected, PyObject *got) {
    Py_ssize_t n = got ? PyTuple_GET_SIZE(got) : 0;
    if (PyTuple_GET_SIZE(expected) != n) return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *a = PyTuple_GET_ITEM(expected, i), *b = PyTuple_GET_ITEM(got, i);
        if (a != b && PyUnicode_Compare(a, b)) return 0;
    }
    return 1;
}

static int64_t extent(const dl_tensor *t) {
    int64_t last = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (!t->shape[i]) return 0;
        last += (t->shape[i] - 1) * t->strides[i];
    }
    return (last + 1) * (t->dtype.bits / 8);
}

/* Of a tensor: 1, or 0 for one that is not what can be compiled for. */
static int describe(PyObject *object, dl_tensor *t) {
    if (!exchange->describe(object, t)) return 1;
    PyErr_Clear(); /* sparse, quantised, without memory */
    return 0;
}

static int tensor_holds(const tw_meta *m, PyObject *object, tw_found *found, dl_tensor *seen) {
    if (m->type ? Py_TYPE(object) != m->type : !PyObject_TypeCheck(object, tensor_type)) return 0;
    if (!describe(object, seen)) return 0;
    const dl_tensor t = *seen;
    if (memcmp(&t.dtype, &m->dtype, sizeof t.dtype) || t.device.type != m->device.type || t.device.id != m->device.id || t.ndim != m->ndim) return 0;
    for (int32_t i = 0; i < t.ndim; i++) {
        int64_t size = m->shape[i], stride = m->shape[m->ndim + i];
        if ((t.shape[i] != size && size != TW_ANY) || (t.strides[i] != stride && stride != TW_ANY && t.shape[i] > 1)) return 0;
    }
    if (m->requires_grad >= 0) {
        PyObject *grad = PyObject_GetAttr(object, str_requires_grad);
        if (!grad) return -1;
        int wrong = (grad == Py_True) != m->requires_grad;
        Py_DECREF(grad);
        if (wrong) return 0;
    }
    if (m->input >= 0) {
        found->pointer[m->input] = (char *)t.data + t.byte_offset;
        found->tensor[m->input] = object;
        if (found->bytes) found->bytes[m->input] = extent(&t);
    }
    return 1;
}

/* Reads a size, or asks for one: of the tensor `t`. */
static int size_holds(const tw_row *r, const dl_tensor *t, int64_t *sizes) {
    int64_t expected;
    if (r->dim >= t->ndim) return 0;
    if (r->op == TW_SYMBOL) {
        sizes[r->n] = t->shape[r->dim];
        return 1;
    }
    if (r->op == TW_STRIDE && t->shape[r->dim] <= 1) return 1;
    return tw_program_run(r->program, sizes, &expected) && expected == (r->op == TW_SIZE ? t->shape : t->strides)[r->dim];
}

static int int_symbol_holds(const tw_row *r, PyObject *o, int64_t *sizes) {
    const int64_t limit = (int64_t)1 << 62;
    int overflow = 0;
    if (!PyLong_CheckExact(o)) return 0;
    int64_t n = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow || n <= -limit || n >= limit) return 0;
    sizes[r->n] = n;
    return 1;
}

static int holds_nonzero(const tw_row *r, const int64_t *sizes) {
    int64_t truth;
    return tw_program_run(r->program, sizes, &truth) && truth != 0;
}

static int state_holds(const tw_row *r) {
    PyObject *argument = PyTuple_GET_ITEM(r->b, 0);
    PyObject *got = argument == Py_None ? PyObject_CallNoArgs(r->a) : PyObject_CallOneArg(r->a, argument);
    if (!got) return -1;
    int holds = got == PyTuple_GET_ITEM(r->b, 1);
    Py_DECREF(got);
    return holds;
}

static Py_ssize_t length(PyObject *o) {
    if (PyDict_Check(o)) return PyDict_GET_SIZE(o);
    return PyTuple_Check(o) || PyList_Check(o) ? Py_SIZE(o) : -1;
}

static PyObject *item(PyObject *o, Py_ssize_t i) {
    if (!(PyTuple_Check(o) || PyList_Check(o)) || i >= Py_SIZE(o)) return NULL;
    return PyTuple_Check(o) ? PyTuple_GET_ITEM(o, i) : PyList_GET_ITEM(o, i);
}

/* Values of exactly one type that compare equal; NaN equals itself, 0.0 does not equal -0.0. */
static int equal(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return !memcmp(&x, &y, sizeof x);
    }
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

/* What the object itself keeps alive, as a borrowed reference; NULL where there is none. */
static PyObject *kept(PyObject *o, PyObject *name) {
    if (!name) {
        PyObject **place = _PyObject_GetDictPtr(o);
        if (place && *place) return *place;
    } else if (PyFunction_Check(o) && (name == str_defaults || name == str_kwdefaults)) {
        PyObject *found = name == str_defaults ? PyFunction_GET_DEFAULTS(o) : PyFunction_GET_KW_DEFAULTS(o);
        return found ? found : Py_None;
    }
    PyObject *value = name ? PyObject_GetAttr(o, name) : PyObject_GenericGetDict(o, NULL);
    if (!value) {
        PyErr_Clear();
        return NULL;
    }
    int held = Py_REFCNT(value) > 1;
    Py_DECREF(value);
    return held ? value : NULL;
}

/* An OrderedDict keeps an order of its own, which only its iterator tells. */
static int ordered_keys_hold(PyObject *o, PyObject *keys) {
    PyObject *iterator = PyObject_GetIter(o), *key;
    int holds = iterator ? 1 : -1;
    for (Py_ssize_t n = 0; holds > 0 && (key = PyIter_Next(iterator)); n++) {
        holds = n < PyTuple_GET_SIZE(keys) ? equal(key, PyTuple_GET_ITEM(keys, n)) : 0;
        Py_DECREF(key);
    }
    Py_XDECREF(iterator);
    return PyErr_Occurred() ? -1 : holds;
}

static int keys_hold(PyObject *o, PyObject *keys) {
    PyObject *key, *value;
    Py_ssize_t at = 0, n = 0;
    if (!PyDict_Check(o) || PyDict_GET_SIZE(o) != PyTuple_GET_SIZE(keys)) return 0;
    if (PyODict_CheckExact(o)) return ordered_keys_hold(o, keys);
    while (PyDict_Next(o, &at, &key, &value)) {
        int holds = equal(key, PyTuple_GET_ITEM(keys, n++));
        if (holds <= 0) return holds;
    }
    return 1;
}

PyObject *_PyType_Lookup(PyTypeObject *, PyObject *);

/* The version tag, where it is still the one seen last, says that no class involved was edited. */
static int class_holds(tw_row *r) {
    PyTypeObject *type = (PyTypeObject *)r->a;
    if (type->tp_version_tag && (Py_ssize_t)type->tp_version_tag == r->n) return 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(r->b); i++) {
        PyObject *pair = PyTuple_GET_ITEM(r->b, i), *found = _PyType_Lookup(type, PyTuple_GET_ITEM(pair, 0));
        if (found != (PyTuple_GET_SIZE(pair) > 1 ? PyTuple_GET_ITEM(pair, 1) : NULL)) return 0;
    }
    r->n = (Py_ssize_t)type->tp_version_tag;
    return 1;
}

#define AHEAD 4 /* groups whose dictionaries are fetched into the cache before they are looked at */

/* What a check carries from row to row: the tensor in slot `described`, forgotten at any row that could run code. */
typedef struct {
    tw_found *found;
    int32_t described;
    dl_tensor seen;
} checking;

__attribute__((always_inline)) static inline int row_holds(tw_row *r, PyObject **slot, checking *c) {
    PyObject *o = slot[r->slot];
    int holds = 1;
    if (r->op < TW_INT_SYMBOL) c->described = -1;
    switch (r->op) {
    case TW_CONST: slot[r->fills] = r->a; break;
    case TW_GET:
        holds = PyDict_Check(o) && (slot[r->fills] = PyDict_GetItemWithError(o, r->a)) != NULL;
        if (!holds && PyErr_Occurred()) return -1;
        break;
    case TW_ITEM: holds = (slot[r->fills] = item(o, r->n)) != NULL; break;
    case TW_DICT: holds = (!r->a || (PyObject *)Py_TYPE(o) == r->a) && (slot[r->fills] = kept(o, NULL)) != NULL; break;
    case TW_ATTR: holds = (slot[r->fills] = kept(o, r->a)) != NULL; break;
    case TW_CELL: holds = PyCell_Check(o) && (slot[r->fills] = PyCell_GET(o)) != NULL; break;
    case TW_TYPE: holds = (PyObject *)Py_TYPE(o) == r->a; break;
    case TW_IS: holds = o == r->a; break;
    case TW_SAME: holds = o == slot[r->n]; break;
    case TW_EQ: holds = equal(o, r->a); break;
    case TW_LEN: holds = length(o) == r->n; break;
    case TW_TENSOR:
        holds = tensor_holds(r->meta, o, c->found, &c->seen);
        c->described = r->slot;
        break;
    case TW_SYMBOL: case TW_SIZE: case TW_STRIDE:
        if (c->described != r->slot && (holds = PyObject_TypeCheck(o, tensor_type) && describe(o, &c->seen))) c->described = r->slot;
        if (holds) holds = size_holds(r, &c->seen, c->found->sizes);
        break;
    case TW_INT_SYMBOL: holds = int_symbol_holds(r, o, c->found->sizes); break;
    case TW_HOLDS: holds = holds_nonzero(r, c->found->sizes); break;
    case TW_STATE: holds = state_holds(r); break;
    case TW_ABSENT:
        holds = PyDict_Check(o) && !PyDict_GetItemWithError(o, r->a);
        if (PyErr_Occurred()) return -1;
        break;
    case TW_KEYS: holds = keys_hold(o, r->a); break;
    case TW_CLASS: holds = class_holds(r); break;
    case TW_DIFFER: holds = o != slot[r->n]; break;
    case TW_PASS: c->found->tensor[r->n] = o; break;
    case TW_CODE: holds = PyFunction_Check(o) && PyFunction_GET_CODE(o) == r->a; break;
    }
    return holds;
}

/* The members one by one; where all hold, the version that the dictionary had before says so from then on. */
static int members_hold(const tw_guards *g, tw_group *group, PyObject **slot, checking *c, Py_ssize_t *failed) {
    uint64_t version = tw_dict_version(slot[group->slot]);
    for (int32_t i = group->member; i < group->member + group->members; i++) {
        int holds = row_holds(&g->row[i], slot, c);
        if (holds <= 0) {
            *failed = g->row[i].number;
            return holds;
        }
    }
    tw_group_held(g, group, slot, version);
    return 1;
}

/* A group whose dictionary is as it was: 1, or 0 with the row of a length that differs. */
static inline int children_hold(const tw_child *child, int32_t count, PyObject **slot, Py_ssize_t *failed) {
    for (; count > 0; count--, child++) {
        if (!child->length) {
            slot[child->slot] = child->value;
        } else if (*child->length != child->n) {
            *failed = child->row;
            return 0;
        }
    }
    return 1;
}

int tw_guards_check(const tw_guards *g, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, tw_found *found, Py_ssize_t *failed) {
    PyObject **slot = found->slot;
    *failed = -1;
    if (nargs != g->nargs || !same_names(g->kwnames, kwnames)) return 0;
    memcpy(slot, args, (size_t)(nargs + PyTuple_GET_SIZE(g->kwnames)) * sizeof *slot);
    checking c = {.found = found, .described = -1};
    for (Py_ssize_t i = 0; i < g->steps; i++) {
        int32_t step = g->step[i];
        int holds;
        if (step >= 0) {
            holds = row_holds(&g->row[step], slot, &c);
            if (holds <= 0) *failed = g->row[step].number;
        } else {
            tw_group *group = &g->group[-1 - step];
            PyObject *dict = slot[group->slot];
            c.described = -1;
            if (-1 - step + AHEAD < g->groups) __builtin_prefetch(group[AHEAD].dict);
            if (dict == group->dict && tw_dict_version(dict) == group->version)
                holds = children_hold(g->child + group->child, group->children, slot, failed);
            else
                holds = members_hold(g, group, slot, &c, failed);
        }
        if (holds <= 0) return holds;
    }
    return 1;
}
