/* Groups of guard rows that one dictionary decides, so that the dictionary's version answers for all of them.
 *
 * A dictionary that is found from a constant (a module's `__dict__`, a function's globals) is nearly always as it was at the call
 * before. Of the rows that read it, and those that only ask which object they got, none needs to be checked again while it is.
 * What they got is looked into at every call: a tensor's metadata, a container's length.
 */
#include "native.h"

#include <string.h>

/* Whether one object always equals another once it did: a number or a text, of exactly that type. */
static int never_changes(PyObject *o) {
    return o == Py_None || PyLong_CheckExact(o) || PyBool_Check(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) ||
           PyBytes_CheckExact(o);
}

/* Per slot: the row that fills it (-1: an argument), whether it is found from a constant, its group. */
typedef struct {
    int32_t row, group;
    char constant, read;
} source;

/* The slot whose dictionary decides the row, or -1; of a length, it decides whose it is. */
static int32_t decided_by(const tw_guards *g, const tw_row *r, const source *slots) {
    if (r->op == TW_GET || r->op == TW_ABSENT) return slots[r->slot].constant ? r->slot : -1;
    if (r->op != TW_IS && r->op != TW_LEN && !(r->op == TW_EQ && never_changes(r->a))) return -1;
    const source *s = &slots[r->slot];
    return s->row >= 0 && g->row[s->row].op == TW_GET && slots[g->row[s->row].slot].constant ? g->row[s->row].slot : -1;
}

static void find_sources(tw_guards *g, source *slots) {
    for (Py_ssize_t i = 0; i < g->slots; i++) slots[i] = (source){-1, -1, 0, 0};
    for (Py_ssize_t i = 0; i < g->rows; i++) {
        const tw_row *r = &g->row[i];
        if (r->op > TW_CELL) continue;
        slots[r->fills].row = (int32_t)i;
        slots[r->fills].constant = r->op == TW_CONST || slots[r->slot].constant;
    }
}

/* Numbers the groups in the order of their first rows, counts their members, and notes which slots rows outside them read. */
static void find_groups(tw_guards *g, source *slots) {
    for (Py_ssize_t i = 0; i < g->rows; i++) {
        const tw_row *r = &g->row[i];
        int32_t by = decided_by(g, r, slots);
        if (by < 0) {
            if (r->op != TW_CONST && r->op != TW_CLASS && r->op != TW_STATE && r->op != TW_HOLDS) slots[r->slot].read = 1;
            if (r->op == TW_SAME || r->op == TW_DIFFER) slots[r->n].read = 1;
            continue;
        }
        slots[by].read = 1;
        if (slots[by].group < 0) {
            slots[by].group = (int32_t)g->groups;
            g->group[g->groups++].slot = by;
        }
        g->group[slots[by].group].members++;
        if (r->op == TW_LEN) g->group[slots[by].group].children++;
    }
    for (Py_ssize_t i = 0; i < g->slots; i++) /* a slot that others read is filled */
        if (slots[i].read && slots[i].row >= 0 && g->row[slots[i].row].op == TW_GET && slots[g->row[slots[i].row].slot].constant)
            g->group[slots[g->row[slots[i].row].slot].group].children++;
}

/* Gives the groups their ranges of rows, behind the `alone` rows that are in none, and of children. */
static void lay_out(tw_guards *g, Py_ssize_t alone) {
    int32_t member = (int32_t)alone, child = 0;
    for (Py_ssize_t i = 0; i < g->groups; i++) {
        tw_group *group = &g->group[i];
        group->member = member;
        group->child = child;
        member += group->members;
        child += group->children;
        group->members = group->children = 0;
    }
}

static void add_member(tw_guards *g, tw_group *group, const tw_row *r, tw_row *rows, const source *slots) {
    tw_child *child = &g->child[group->child + group->children];
    rows[group->member + group->members++] = *r;
    if (r->op == TW_LEN || (r->op == TW_GET && slots[r->fills].read)) {
        *child = (tw_child){.n = r->op == TW_LEN ? r->n : -1, .slot = r->op == TW_LEN ? r->slot : r->fills, .row = r->number};
        group->children++;
    }
}

/* The rows in the order of checking: those in no group, then the members of each group. */
static void arrange(tw_guards *g, const source *slots, tw_row *rows) {
    Py_ssize_t alone = 0;
    for (Py_ssize_t i = 0; i < g->rows; i++) {
        const tw_row *r = &g->row[i];
        int32_t by = decided_by(g, r, slots);
        if (by < 0) {
            g->step[g->steps++] = (int32_t)alone;
            rows[alone++] = *r;
            continue;
        }
        tw_group *group = &g->group[slots[by].group];
        if (!group->members) g->step[g->steps++] = -1 - slots[by].group;
        add_member(g, group, r, rows, slots);
    }
}

int tw_groups_init(tw_guards *g) {
    source *slots = PyMem_Calloc((size_t)g->slots + 1, sizeof *slots);
    tw_row *rows = PyMem_Calloc((size_t)g->rows + 1, sizeof *rows);
    g->step = PyMem_Calloc((size_t)g->rows + 1, sizeof *g->step);
    g->group = PyMem_Calloc((size_t)g->slots + 1, sizeof *g->group);
    g->child = PyMem_Calloc((size_t)g->rows + 1, sizeof *g->child);
    int failed = !slots || !rows || !g->step || !g->group || !g->child;
    if (!failed) {
        Py_ssize_t members = 0;
        find_sources(g, slots);
        find_groups(g, slots);
        for (Py_ssize_t i = 0; i < g->groups; i++) members += g->group[i].members;
        lay_out(g, g->rows - members);
        arrange(g, slots, rows);
        memcpy(g->row, rows, (size_t)g->rows * sizeof *rows);
    }
    PyMem_Free(slots);
    PyMem_Free(rows);
    return failed ? (PyErr_NoMemory(), -1) : 0;
}

static const Py_ssize_t *length_of(PyObject *o) {
    if (PyDict_Check(o)) return &((PyDictObject *)o)->ma_used;
    return PyTuple_Check(o) || PyList_Check(o) ? &((PyVarObject *)o)->ob_size : NULL;
}

void tw_group_held(const tw_guards *g, tw_group *group, PyObject *const *slot, uint64_t version) {
    tw_child *child = g->child + group->child;
    for (int32_t i = 0; i < group->children; i++) {
        child[i].value = slot[child[i].slot];
        child[i].length = child[i].n >= 0 ? length_of(child[i].value) : NULL;
    }
    group->version = version;
    group->dict = version ? slot[group->slot] : NULL;
}

void tw_groups_clear(tw_guards *g) {
    PyMem_Free(g->group);
    PyMem_Free(g->child);
    PyMem_Free(g->step);
    g->group = NULL;
    g->child = NULL;
    g->step = NULL;
    g->groups = g->steps = 0;
}
