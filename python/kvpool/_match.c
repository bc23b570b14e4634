/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpool._memory.Found and find(): what a match holds, and the match itself where nothing is asked of the daemon. A match of
 * 64 blocks takes the library 1.5 us, about as much as a dozen calls from Python to C.
 */
#include "_memory.h"

#include <kvpool.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* ---- Found ----------------------------------------------------------------------------------- */

struct found {
	struct held held; /* above it: the client */
	PyObject *space;  /* a reference */
	PyObject *blocks; /* their addresses, once asked for; NULL is None */
	struct kvp_prefix *prefix;
	struct kvp_prefix_info info;
};

static PyTypeObject *found_type;

static int take_info(struct kvp_prefix *prefix, struct kvp_prefix_info *info)
{
	info->size = sizeof(*info);
	return kvp_match_info(prefix, info);
}

static void found_fill(struct found *f, PyObject *client, PyObject *space,
	struct kvp_prefix *prefix, const struct kvp_prefix_info *info)
{
	Py_INCREF(client);
	f->held.above = (struct held *)client;
	Py_INCREF(space);
	f->space = space;
	f->prefix = prefix;
	f->info = *info;
}

/* Found(client, space, handle): owns the handle, of a match that the caller has made. */
static int found_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct found *f = (struct found *)self;
	struct kvp_prefix_info info;
	PyObject *client, *space;
	unsigned long long handle;
	int r;

	if (kwargs && PyDict_GET_SIZE(kwargs)) {
		PyErr_SetString(PyExc_TypeError, "Found() takes no keywords");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "O!OK", held_type, &client, &space, &handle))
		return -1;
	if (f->held.above) {
		PyErr_SetString(PyExc_RuntimeError, "Found() was called before");
		return -1;
	}
	/* By another thread, since the match was made. */
	if (held_closed((struct held *)client)) {
		PyErr_SetString(PyExc_ValueError, "the client was closed");
		return -1;
	}
	r = take_info((struct kvp_prefix *)(uintptr_t)handle, &info);
	if (r < 0) {
		PyErr_Format(PyExc_ValueError, "no match: %s", strerror(-r));
		return -1;
	}
	found_fill(f, client, space, (struct kvp_prefix *)(uintptr_t)handle, &info);
	return 0;
}

/*
 * A match that its own space has is a cycle, whose lease would never end. A space with a finalizer closes its handle in
 * that, which comes before the match could be released.
 */
static int found_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct found *f = (struct found *)self;

#if PY_VERSION_HEX >= 0x03090000
	Py_VISIT(Py_TYPE(self));
#endif
	if (f->space && !Py_TYPE(f->space)->tp_finalize)
		Py_VISIT(f->space);
	return 0;
}

static int found_clear(PyObject *self)
{
	Py_CLEAR(((struct found *)self)->space);
	return 0;
}

static void let_go(struct found *f)
{
	held_enter(&f->held);
	Py_BEGIN_ALLOW_THREADS;
	kvp_release(f->prefix);
	Py_END_ALLOW_THREADS;
	held_leave(&f->held);
}

/* Of a closed client the handle is gone already. */
static void found_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	struct found *f = (struct found *)self;

	PyObject_GC_UnTrack(self);
	if (f->prefix && !held_closed(&f->held))
		let_go(f);
	Py_CLEAR(f->space);
	Py_CLEAR(f->blocks);
	Py_CLEAR(f->held.above);
	type->tp_free(self);
	Py_DECREF(type);
}

static PyObject *found_release(PyObject *self, PyObject *ignored)
{
	struct found *f = (struct found *)self;

	(void)ignored;
	if (held_closed(&f->held))
		Py_RETURN_NONE;
	if (held_end(&f->held) < 0)
		return NULL;
	let_go(f);
	Py_RETURN_NONE;
}

static PyObject *found_enter(PyObject *self, PyObject *ignored)
{
	(void)ignored;
	Py_INCREF(self);
	return self;
}

static PyObject *found_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	(void)args;
	(void)n;
	return found_release(self, NULL);
}

static PyObject *found_handle(PyObject *self, void *ignored)
{
	const struct found *f = (const struct found *)self;

	(void)ignored;
	if (held_closed(&f->held)) {
		PyErr_SetString(PyExc_ValueError, "the match was released");
		return NULL;
	}
	return PyLong_FromVoidPtr(f->prefix);
}

static PyMethodDef found_methods[] = {
	{ "release", found_release, METH_NOARGS,
		"Ends the lease. BufferError while arrays or buffers look at its blocks; harmless "
		"if "
		"done before." },
	{ "__enter__", found_enter, METH_NOARGS, NULL },
	{ "__exit__", (PyCFunction)(void (*)(void))found_exit, METH_FASTCALL, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyMemberDef found_members[] = {
	{ "space", T_OBJECT, offsetof(struct found, space), READONLY, "Whose blocks they are." },
	{ "_blocks", T_OBJECT, offsetof(struct found, blocks), 0, "Their addresses." },
	{ "n_blocks", T_UINT, offsetof(struct found, info.n_blocks), READONLY,
		"Whole blocks, and a partial one that equals all that was left." },
	{ "n_tokens", T_UINT, offsetof(struct found, info.n_tokens), READONLY, "In those." },
	{ "tail_tokens", T_UINT, offsetof(struct found, info.tail_tokens), READONLY,
		"Leading tokens of one more block that agree." },
	{ "_flags", T_UINT, offsetof(struct found, info.flags), READONLY, "KVP_MATCHED_*" },
	{ NULL, 0, 0, 0, NULL },
};

static PyGetSetDef found_getset[] = {
	{ "_handle", found_handle, NULL, "The library's handle; ValueError: released.", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot found_slots[] = {
	{ Py_tp_init, found_init },
	{ Py_tp_dealloc, found_dealloc },
	{ Py_tp_traverse, found_traverse },
	{ Py_tp_clear, found_clear },
	{ Py_tp_methods, found_methods },
	{ Py_tp_members, found_members },
	{ Py_tp_getset, found_getset },
	{ 0, NULL },
};

static PyType_Spec found_spec = {
	.name = "kvpool._memory.Found",
	.basicsize = sizeof(struct found),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = found_slots,
};

/* ---- find() ---------------------------------------------------------------------------------- */

/* The kind of integers that a format of one letter means, or -1. */
static int kind_of(const char *format, Py_ssize_t bytes)
{
	if (!format)
		return -1;
	if (*format == '@' || *format == '=' || *format == '<')
		format++;
	if (!*format || format[1])
		return -1;
	if (strchr("IL", *format) && bytes == 4)
		return KVP_IDS_U32;
	if (strchr("ilq", *format) && bytes == 4)
		return KVP_IDS_I32;
	/* One of more than 63 bits reads as negative, and is refused like that. */
	if (strchr("ilqLQ", *format) && bytes == 8)
		return KVP_IDS_I64;
	return -1;
}

/* 1: taken, to be released. 0: the object is something else, which Python looks at. */
static int ids_take(PyObject *tokens, Py_buffer *buffer, struct kvp_ids *ids)
{
	int kind;

	if (!PyObject_CheckBuffer(tokens))
		return 0;
	if (PyObject_GetBuffer(tokens, buffer, PyBUF_FORMAT | PyBUF_ND) < 0) {
		PyErr_Clear();
		return 0;
	}
	kind = buffer->ndim == 1 ? kind_of(buffer->format, buffer->itemsize) : -1;
	if (kind < 0) {
		PyBuffer_Release(buffer);
		return 0;
	}
	*ids = (struct kvp_ids){ buffer->buf, (size_t)(buffer->len / buffer->itemsize),
		(uint32_t)kind };
	return 1;
}

static int match(struct kvp_space *space, const struct kvp_ids *ids, uint32_t flags,
	struct kvp_prefix **prefix, struct kvp_prefix_info *info)
{
	const struct kvp_match_opts opts = { .size = sizeof(opts), .flags = flags };
	int r = kvp_match_ids(space, ids, &opts, prefix);

	return r < 0 ? r : take_info(*prefix, info);
}

static PyObject *find(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *prefix;
	struct kvp_space *space;
	PyTypeObject *type;
	unsigned long flags;
	struct found *f;
	Py_buffer buffer;
	struct kvp_ids ids;
	int r;

	(void)self;
	if (n != 6 || !PyType_Check(args[0]) ||
		!PyType_IsSubtype((PyTypeObject *)args[0], found_type) ||
		!PyObject_TypeCheck(args[2], held_type)) {
		PyErr_SetString(
			PyExc_TypeError, "find(type, space, client, handle, tokens, flags)");
		return NULL;
	}
	type = (PyTypeObject *)args[0];
	if (held_closed((struct held *)args[2])) {
		PyErr_SetString(PyExc_ValueError, "the client was closed");
		return NULL;
	}
	space = PyLong_AsVoidPtr(args[3]);
	flags = PyLong_AsUnsignedLong(args[5]);
	if (PyErr_Occurred())
		return NULL;
	if (!ids_take(args[4], &buffer, &ids))
		Py_RETURN_NOTIMPLEMENTED;
	f = (struct found *)type->tp_alloc(type, 0);
	if (!f) {
		PyBuffer_Release(&buffer);
		return NULL;
	}
	held_enter((struct held *)args[2]);
	Py_BEGIN_ALLOW_THREADS;
	r = match(space, &ids, (uint32_t)flags, &prefix, &info);
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&buffer);
	if (r < 0)
		Py_CLEAR(f);
	else
		found_fill(f, args[2], args[1], prefix, &info);
	held_leave((struct held *)args[2]);
	return f ? (PyObject *)f : PyLong_FromLong(r);
}

static PyMethodDef functions[] = {
	{ "find", (PyCFunction)(void (*)(void))find, METH_FASTCALL,
		"find(type, space, client, handle, tokens, flags): a match without a claim, as a "
		"`type`, which is Found or a subclass. NotImplemented: the tokens are no plain "
		"array. A number: the library's error." },
	{ NULL, NULL, 0, NULL },
};

int match_add(PyObject *module)
{
	PyObject *bases = PyTuple_Pack(1, (PyObject *)held_type);

	if (!bases)
		return -1;
	found_type = (PyTypeObject *)PyType_FromSpecWithBases(&found_spec, bases);
	Py_DECREF(bases);
	if (!found_type)
		return -1;
	Py_INCREF(found_type);
	if (PyModule_AddObject(module, "Found", (PyObject *)found_type) < 0) {
		Py_DECREF(found_type);
		return -1;
	}
	return PyModule_AddFunctions(module, functions);
}
