/* SPDX-License-Identifier: Apache-2.0 */
/* What the C files of kvpool._memory share. */
#ifndef KVPOOL_MEMORY_H
#define KVPOOL_MEMORY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* What keeps memory where it is, see _memory.c. */
struct held {
	PyObject_HEAD struct held *above; /* a reference, or NULL */
	Py_ssize_t exports;               /* its own and those below */
	Py_ssize_t calls; /* of the library, under way; counted where nothing is above */
	PyObject *last;   /* what the last of them is to call, once closed: a tuple; or NULL */
	char closed;
};

extern PyTypeObject *held_type;

/* Was it, or what it belongs to, released? */
int held_closed(const struct held *h);
/* Marks it closed. -1 and BufferError while memory is exported. */
int held_end(struct held *h);

/*
 * Around every call of the library that is made without the GIL: what is freed when the client closes stays until the last
 * of them has ended. The caller has found it open and has a reference. held_leave() keeps an exception that is set.
 */
void held_enter(struct held *h);
void held_leave(struct held *h);

/* _match.c: adds Found and find(). 0, or -1 and an exception. */
int match_add(PyObject *module);

#endif
