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
	char closed;
};

extern PyTypeObject *held_type;

/* Was it, or what it belongs to, released? */
int held_closed(const struct held *h);
/* Marks it closed. -1 and BufferError while memory is exported. */
int held_end(struct held *h);

/* _match.c: adds Found and find(). 0, or -1 and an exception. */
int match_add(PyObject *module);

#endif
