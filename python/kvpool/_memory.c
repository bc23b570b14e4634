/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpool._memory: memory of the cache as Python sees it.
 *
 * A Held is what keeps memory where it is: a match, a grant, and above them their client. A Payload
 * is a piece of that memory with a shape; it keeps its Held alive. As long as somebody has the
 * address (a buffer, a DLPack capsule or what was made of it, an array made by __array_interface__)
 * the Held and all above it count an export, and do not close: BufferError, as with a bytearray that
 * a memoryview looks at. A Payload without exports does not stand in the way; it is empty afterwards.
 *
 * Calls of the library let go of the GIL, and another thread may close the client meanwhile. It is closed for all
 * calls that come then; those under way are counted, and the last of them has the library close it (_finish()).
 *
 * All counts change with the GIL held.
 */
#include "_memory.h"

#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define MAX_DIMS 4

/* ---- Held ------------------------------------------------------------------------------------ */

PyTypeObject *held_type;

static PyObject *held_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct held *h = (struct held *)type->tp_alloc(type, 0);

	(void)args;
	(void)kwargs;
	return (PyObject *)h;
}

static int held_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct held *h = (struct held *)self;
	PyObject *above = Py_None;

	if (kwargs && PyDict_GET_SIZE(kwargs)) {
		PyErr_SetString(PyExc_TypeError, "Held() takes no keywords");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "|O", &above))
		return -1;
	if (above != Py_None && !PyObject_TypeCheck(above, held_type)) {
		PyErr_SetString(PyExc_TypeError, "what is above must be a Held");
		return -1;
	}
	if (h->above || h->exports) {
		PyErr_SetString(PyExc_RuntimeError, "Held() was called before");
		return -1;
	}
	if (above != Py_None) {
		Py_INCREF(above);
		h->above = (struct held *)above;
	}
	return 0;
}

static void held_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	Py_CLEAR(((struct held *)self)->above);
	Py_CLEAR(((struct held *)self)->last);
	type->tp_free(self);
	Py_DECREF(type);
}

static void held_export(struct held *h, int n)
{
	for (; h; h = h->above)
		h->exports += n;
}

int held_closed(const struct held *h)
{
	for (; h; h = h->above)
		if (h->closed)
			return 1;
	return 0;
}

int held_end(struct held *h)
{
	if (h->exports) {
		PyErr_Format(PyExc_BufferError,
			"%zd buffers or arrays still look at this memory: drop them first",
			h->exports);
		return -1;
	}
	h->closed = 1;
	return 0;
}

static struct held *held_root(struct held *h)
{
	while (h->above)
		h = h->above;
	return h;
}

void held_enter(struct held *h)
{
	held_root(h)->calls++;
}

void held_leave(struct held *h)
{
	struct held *root = held_root(h);
	PyObject *last, *type, *value, *trace, *r;

	if (--root->calls || !root->last)
		return;
	last = root->last;
	root->last = NULL;
	PyErr_Fetch(&type, &value, &trace);
	r = PyObject_CallObject(PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
	if (!r)
		PyErr_WriteUnraisable(last);
	Py_XDECREF(r);
	Py_DECREF(last);
	PyErr_Restore(type, value, trace);
}

/* What is called, and with what, of a method that is given both. */
static PyObject *held_call(struct held *h, PyObject *const *args, Py_ssize_t n)
{
	PyObject *r;

	held_enter(h);
	r = PyObject_Vectorcall(args[0], args + 1, (size_t)(n - 1), NULL);
	held_leave(h);
	return r;
}

static int held_callable(PyObject *const *args, Py_ssize_t n)
{
	if (n >= 1 && PyCallable_Check(args[0]))
		return 1;
	PyErr_SetString(PyExc_TypeError, "a function and what it is called with");
	return 0;
}

static PyObject *held_during(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct held *h = (struct held *)self;

	if (!held_callable(args, n))
		return NULL;
	if (held_closed(h)) {
		PyErr_SetString(
			PyExc_ValueError, h->above ? "it was released" : "the client was closed");
		return NULL;
	}
	return held_call(h, args, n);
}

static PyObject *held_release(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct held *h = (struct held *)self;

	if (!held_callable(args, n))
		return NULL;
	if (held_closed(h))
		Py_RETURN_NONE;
	if (held_end(h) < 0)
		return NULL;
	return held_call(h, args, n);
}

static PyObject *held_finish(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	struct held *h = (struct held *)self;
	PyObject *rest, *last;

	if (!held_callable(args, n))
		return NULL;
	if (held_closed(h))
		Py_RETURN_FALSE;
	rest = PyTuple_New(n - 1);
	if (!rest)
		return NULL;
	for (Py_ssize_t i = 1; i < n; i++) {
		Py_INCREF(args[i]);
		PyTuple_SET_ITEM(rest, i - 1, args[i]);
	}
	last = PyTuple_Pack(2, args[0], rest);
	Py_DECREF(rest);
	if (!last)
		return NULL;
	if (held_end(h) < 0) {
		Py_DECREF(last);
		return NULL;
	}
	h->last = last;
	/* This one is a call too: if it is the only one, it is the last. */
	held_enter(h);
	held_leave(h);
	Py_RETURN_TRUE;
}

static PyObject *held_close(PyObject *self, PyObject *ignored)
{
	(void)ignored;
	if (held_end((struct held *)self) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *held_get_closed(PyObject *self, void *ignored)
{
	(void)ignored;
	return PyBool_FromLong(held_closed((struct held *)self));
}

static PyMethodDef held_methods[] = {
	{ "_close", held_close, METH_NOARGS,
		"Marks it closed; BufferError while memory is exported." },
	{ "during", (PyCFunction)(void (*)(void))held_during, METH_FASTCALL,
		"during(function, ...): calls it; what it is about stays until it returns. "
		"ValueError: "
		"closed already." },
	{ "_release", (PyCFunction)(void (*)(void))held_release, METH_FASTCALL,
		"_release(function, ...): marks it closed and calls the function, likewise; "
		"nothing if "
		"it was closed before. BufferError while memory is exported." },
	{ "_finish", (PyCFunction)(void (*)(void))held_finish, METH_FASTCALL,
		"_finish(function, ...): of what nothing is above. Marks it closed, and the last "
		"call under "
		"way calls the function, or this one. False if it was closed before. "
		"BufferError." },
	{ NULL, NULL, 0, NULL },
};

static PyMemberDef held_members[] = {
	{ "exports", T_PYSSIZET, offsetof(struct held, exports), READONLY,
		"Buffers and arrays that look at the memory now." },
	{ NULL, 0, 0, 0, NULL },
};

static PyGetSetDef held_getset[] = {
	{ "closed", held_get_closed, NULL, "Was it, or what it belongs to, released?", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot held_slots[] = {
	{ Py_tp_new, held_new },
	{ Py_tp_init, held_init },
	{ Py_tp_dealloc, held_dealloc },
	{ Py_tp_methods, held_methods },
	{ Py_tp_members, held_members },
	{ Py_tp_getset, held_getset },
	{ 0, NULL },
};

static PyType_Spec held_spec = {
	.name = "kvpool._memory.Held",
	.basicsize = sizeof(struct held),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = held_slots,
};

/* ---- Payload --------------------------------------------------------------------------------- */

/* An element type: as struct, as __array_interface__ and as DLPack name it. */
struct element {
	const char *name, *format, *typestr;
	Py_ssize_t bytes;
	uint8_t dl_code;
};

/* numpy has no bfloat16 and no float8: they are plain numbers there, and themselves in DLPack. */
static const struct element elements[] = {
	{ "float32", "f", "<f4", 4, 2 },
	{ "float16", "e", "<f2", 2, 2 },
	{ "bfloat16", "H", "<u2", 2, 4 },
	{ "uint8", "B", "|u1", 1, 1 },
};

struct payload {
	PyObject_HEAD struct held *held; /* a reference */
	char *addr;
	const struct element *element;
	Py_ssize_t bytes; /* of all elements */
	Py_ssize_t shape[MAX_DIMS], strides[MAX_DIMS];
	int ndim;
	char readonly;
	char lent; /* an address was given out that nobody gives back */
};

static int take_tuple(PyObject *tuple, const char *what, Py_ssize_t *to)
{
	Py_ssize_t n = PyTuple_Size(tuple);

	if (n < 1 || n > MAX_DIMS) {
		PyErr_Format(PyExc_ValueError, "%s: 1 to %d numbers", what, MAX_DIMS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		to[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
		if (to[i] < 0) {
			if (!PyErr_Occurred())
				PyErr_Format(PyExc_ValueError, "%s: below 0", what);
			return -1;
		}
	}
	return (int)n;
}

static PyObject *payload_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = { "held", "address", "dtype", "shape", "strides",
		"readonly", NULL };
	PyObject *held, *shape, *strides;
	const struct element *e = NULL;
	unsigned long long address;
	struct payload *p;
	const char *dtype;
	int readonly;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!KsO!O!p", (char **)names, held_type,
		    &held, &address, &dtype, &PyTuple_Type, &shape, &PyTuple_Type, &strides,
		    &readonly))
		return NULL;
	for (size_t i = 0; i < sizeof(elements) / sizeof(elements[0]); i++)
		if (!strcmp(elements[i].name, dtype))
			e = &elements[i];
	if (!e || PyTuple_Size(shape) != PyTuple_Size(strides)) {
		PyErr_SetString(PyExc_ValueError, "no such dtype, or shape and strides disagree");
		return NULL;
	}
	p = (struct payload *)type->tp_alloc(type, 0);
	if (!p)
		return NULL;
	Py_INCREF(held);
	p->held = (struct held *)held;
	p->addr = (char *)(uintptr_t)address;
	p->element = e;
	p->readonly = readonly != 0;
	p->ndim = take_tuple(shape, "shape", p->shape);
	if (p->ndim < 0 || take_tuple(strides, "strides", p->strides) < 0) {
		Py_DECREF(p);
		return NULL;
	}
	p->bytes = e->bytes;
	for (int i = 0; i < p->ndim; i++)
		p->bytes *= p->shape[i];
	return (PyObject *)p;
}

static void payload_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	struct payload *p = (struct payload *)self;

	if (p->lent)
		held_export(p->held, -1);
	Py_CLEAR(p->held);
	type->tp_free(self);
	Py_DECREF(type);
}

static int payload_usable(const struct payload *p)
{
	if (!held_closed(p->held))
		return 1;
	PyErr_SetString(PyExc_ValueError, "the match or grant of this memory was released");
	return 0;
}

static int is_contiguous(const struct payload *p)
{
	Py_ssize_t want = p->element->bytes;

	for (int i = p->ndim - 1; i >= 0; i--) {
		if (p->shape[i] > 1 && p->strides[i] != want)
			return 0;
		want *= p->shape[i];
	}
	return 1;
}

static int payload_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
	struct payload *p = (struct payload *)self;
	int strided = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
	int ordered = (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS ||
		      (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS;

	view->obj = NULL;
	if (!payload_usable(p))
		return -1;
	if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE && p->readonly) {
		PyErr_SetString(PyExc_BufferError, "cached blocks are read-only");
		return -1;
	}
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS ||
		((ordered || !strided) && !is_contiguous(p))) {
		PyErr_SetString(PyExc_BufferError, "the memory does not lie in that order");
		return -1;
	}
	view->buf = p->addr;
	view->len = p->bytes;
	view->itemsize = p->element->bytes;
	view->readonly = p->readonly;
	view->ndim = p->ndim;
	view->format = flags & PyBUF_FORMAT ? (char *)p->element->format : NULL;
	view->shape = flags & PyBUF_ND ? p->shape : NULL;
	view->strides = strided ? p->strides : NULL;
	view->suboffsets = NULL;
	view->internal = NULL;
	Py_INCREF(self);
	view->obj = self;
	held_export(p->held, 1);
	return 0;
}

static void payload_releasebuffer(PyObject *self, Py_buffer *view)
{
	(void)view;
	held_export(((struct payload *)self)->held, -1);
}

static PyObject *tuple_of(const Py_ssize_t *numbers, int n)
{
	PyObject *t = PyTuple_New(n);

	for (int i = 0; t && i < n; i++) {
		PyObject *number = PyLong_FromSsize_t(numbers[i]);

		if (!number)
			Py_CLEAR(t);
		else
			PyTuple_SET_ITEM(t, i, number);
	}
	return t;
}

static PyObject *payload_shape(PyObject *self, void *ignored)
{
	(void)ignored;
	return tuple_of(((struct payload *)self)->shape, ((struct payload *)self)->ndim);
}

static PyObject *payload_strides(PyObject *self, void *ignored)
{
	(void)ignored;
	return tuple_of(((struct payload *)self)->strides, ((struct payload *)self)->ndim);
}

static PyObject *payload_dtype(PyObject *self, void *ignored)
{
	(void)ignored;
	return PyUnicode_FromString(((struct payload *)self)->element->name);
}

static PyObject *payload_address(PyObject *self, void *ignored)
{
	(void)ignored;
	if (!payload_usable((struct payload *)self))
		return NULL;
	return PyLong_FromVoidPtr(((struct payload *)self)->addr);
}

/* Whoever reads it has the address and gives it back to nobody: an export as long as this lives. */
static PyObject *payload_interface(PyObject *self, void *ignored)
{
	struct payload *p = (struct payload *)self;
	PyObject *shape, *strides;

	(void)ignored;
	if (!payload_usable(p))
		return NULL;
	shape = tuple_of(p->shape, p->ndim);
	strides = tuple_of(p->strides, p->ndim);
	if (!shape || !strides) {
		Py_XDECREF(shape);
		Py_XDECREF(strides);
		return NULL;
	}
	if (!p->lent) {
		p->lent = 1;
		held_export(p->held, 1);
	}
	return Py_BuildValue("{s:i,s:s,s:N,s:N,s:(N,O)}", "version", 3, "typestr",
		p->element->typestr, "shape", shape, "strides", strides, "data",
		PyLong_FromVoidPtr(p->addr), p->readonly ? Py_True : Py_False);
}

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* As dlpack.h has them, versions 0.8 and 1.0. */
struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides; /* of elements */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *);
};

struct dl_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dl_versioned *);
	uint64_t flags; /* 1: read-only */
	struct dl_tensor tensor;
};

/* Both kinds in one allocation with what their pointers lead to. */
struct dl_export {
	union {
		struct dl_managed plain;
		struct dl_versioned versioned;
	} as;
	struct payload *payload;
	int64_t shape[MAX_DIMS], strides[MAX_DIMS];
};

/* A consumer may call it from any thread, and after the interpreter. */
static void dl_end(struct dl_export *x)
{
	if (Py_IsInitialized()) {
		PyGILState_STATE state = PyGILState_Ensure();

		held_export(x->payload->held, -1);
		Py_DECREF(x->payload);
		PyGILState_Release(state);
	}
	PyMem_RawFree(x);
}

static void dl_plain_end(struct dl_managed *m)
{
	dl_end(m->context);
}

static void dl_versioned_end(struct dl_versioned *m)
{
	dl_end(m->context);
}

/* A capsule that nobody has taken over still has its name. */
static void dl_capsule_end(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor"))
		dl_plain_end(PyCapsule_GetPointer(capsule, "dltensor"));
	else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
		dl_versioned_end(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static struct dl_tensor dl_describe(struct dl_export *x)
{
	const struct payload *p = x->payload;

	for (int i = 0; i < p->ndim; i++) {
		x->shape[i] = p->shape[i];
		x->strides[i] = p->strides[i] / p->element->bytes;
	}
	return (struct dl_tensor){
		.data = p->addr,
		.device_type = 1, /* the CPU */
		.ndim = p->ndim,
		.code = p->element->dl_code,
		.bits = (uint8_t)(8 * p->element->bytes),
		.lanes = 1,
		.shape = x->shape,
		.strides = x->strides,
	};
}

static PyObject *dl_export(struct payload *p, int versioned)
{
	struct dl_export *x = PyMem_RawCalloc(1, sizeof(*x));
	PyObject *capsule;

	if (!x)
		return PyErr_NoMemory();
	x->payload = p;
	if (versioned)
		x->as.versioned = (struct dl_versioned){
			.major = 1,
			.context = x,
			.deleter = dl_versioned_end,
			.flags = p->readonly ? 1 : 0,
			.tensor = dl_describe(x),
		};
	else
		x->as.plain = (struct dl_managed){
			.tensor = dl_describe(x), .context = x, .deleter = dl_plain_end
		};
	capsule = PyCapsule_New(
		&x->as, versioned ? "dltensor_versioned" : "dltensor", dl_capsule_end);
	if (!capsule) {
		PyMem_RawFree(x);
		return NULL;
	}
	Py_INCREF(p);
	held_export(p->held, 1);
	return capsule;
}

static PyObject *payload_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = { "stream", "max_version", "dl_device", "copy", NULL };
	PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
	struct payload *p = (struct payload *)self;
	int versioned = 0;

	if (!PyArg_ParseTupleAndKeywords(
		    args, kwargs, "|$OOOO", (char **)names, &stream, &version, &device, &copy))
		return NULL;
	if (!payload_usable(p))
		return NULL;
	if (version != Py_None) {
		PyObject *major = PySequence_GetItem(version, 0);

		if (!major)
			return NULL;
		versioned = PyLong_AsLong(major) >= 1;
		Py_DECREF(major);
		if (PyErr_Occurred())
			return NULL;
	}
	if (copy == Py_True || (p->readonly && !versioned)) {
		PyErr_SetString(PyExc_BufferError,
			copy == Py_True ? "this memory is not copied: copy the array"
					: "read-only memory needs a consumer of DLPack 1.0");
		return NULL;
	}
	return dl_export(p, versioned);
}

static PyObject *payload_dlpack_device(PyObject *self, PyObject *ignored)
{
	(void)self;
	(void)ignored;
	return Py_BuildValue("(ii)", 1, 0);
}

/* ---- moving pages ---------------------------------------------------------------------------- */

struct words {
	Py_buffer buffer;
	const uint64_t *at;
	size_t n;
};

static int words_take(PyObject *from, struct words *w)
{
	if (PyObject_GetBuffer(from, &w->buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
		return -1;
	if (w->buffer.itemsize != sizeof(uint64_t) || !w->buffer.format ||
		strcmp(w->buffer.format, "Q") != 0) {
		PyBuffer_Release(&w->buffer);
		PyErr_SetString(PyExc_TypeError, "arrays of \"Q\"");
		return -1;
	}
	w->at = w->buffer.buf;
	w->n = (size_t)w->buffer.len / sizeof(uint64_t);
	return 0;
}

/* Are the parts of each block as long as the block, all together? */
static int parts_fit(const struct words *blocks, size_t block_bytes, const struct words *parts,
	const struct words *sizes)
{
	size_t each = blocks->n ? parts->n / blocks->n : 0;

	if (parts->n != sizes->n || each * blocks->n != parts->n)
		return 0;
	for (size_t b = 0, i = 0; b < blocks->n; b++) {
		size_t left = block_bytes;

		for (size_t end = i + each; i < end; i++) {
			if (sizes->at[i] > left)
				return 0;
			left -= sizes->at[i];
		}
		if (left)
			return 0;
	}
	return 1;
}

static void parts_move(const struct words *blocks, const struct words *parts,
	const struct words *sizes, int gather)
{
	size_t each = blocks->n ? parts->n / blocks->n : 0;

	for (size_t b = 0, i = 0; b < blocks->n; b++) {
		char *block = (char *)(uintptr_t)blocks->at[b];

		for (size_t end = i + each; i < end; i++) {
			char *part = (char *)(uintptr_t)parts->at[i];

			memcpy(gather ? block : part, gather ? part : block, sizes->at[i]);
			block += sizes->at[i];
		}
	}
}

static PyObject *move(PyObject *self, PyObject *args)
{
	PyObject *blocks_from, *parts_from, *sizes_from, *result = NULL;
	struct words blocks, parts, sizes;
	Py_ssize_t block_bytes;
	int gather;

	(void)self;
	if (!PyArg_ParseTuple(
		    args, "OnOOp", &blocks_from, &block_bytes, &parts_from, &sizes_from, &gather))
		return NULL;
	if (words_take(blocks_from, &blocks) < 0)
		return NULL;
	if (words_take(parts_from, &parts) < 0)
		goto no_parts;
	if (words_take(sizes_from, &sizes) < 0)
		goto no_sizes;
	if (block_bytes < 0 || !parts_fit(&blocks, (size_t)block_bytes, &parts, &sizes)) {
		PyErr_SetString(PyExc_ValueError, "the parts of a block are not as long as it");
	} else {
		Py_BEGIN_ALLOW_THREADS;
		parts_move(&blocks, &parts, &sizes, gather);
		Py_END_ALLOW_THREADS;
		Py_INCREF(Py_None);
		result = Py_None;
	}
	PyBuffer_Release(&sizes.buffer);
no_sizes:
	PyBuffer_Release(&parts.buffer);
no_parts:
	PyBuffer_Release(&blocks.buffer);
	return result;
}

static PyMethodDef module_methods[] = {
	{ "move", move, METH_VARARGS,
		"move(blocks, block_bytes, parts, sizes, gather): copies between blocks, whose "
		"addresses these are, and equally many parts of each, one after another; gather: "
		"into the blocks. Arrays of \"Q\". One call without the GIL. The caller holds what "
		"is at the addresses." },
	{ NULL, NULL, 0, NULL },
};

/* ---- the module ------------------------------------------------------------------------------ */

static PyMethodDef payload_methods[] = {
	{ "__dlpack__", (PyCFunction)(void (*)(void))payload_dlpack, METH_VARARGS | METH_KEYWORDS,
		"A capsule with the memory; read-only memory only for consumers of DLPack 1.0." },
	{ "__dlpack_device__", payload_dlpack_device, METH_NOARGS, "(1, 0): the CPU." },
	{ NULL, NULL, 0, NULL },
};

static PyMemberDef payload_members[] = {
	{ "nbytes", T_PYSSIZET, offsetof(struct payload, bytes), READONLY,
		"Bytes of all elements." },
	{ "ndim", T_INT, offsetof(struct payload, ndim), READONLY, "Dimensions." },
	{ "readonly", T_BOOL, offsetof(struct payload, readonly), READONLY,
		"True for cached blocks, False for a grant's." },
	{ NULL, 0, 0, 0, NULL },
};

static PyGetSetDef payload_getset[] = {
	{ "shape", payload_shape, NULL, "Elements in each dimension.", NULL },
	{ "strides", payload_strides, NULL, "Bytes from one element to the next.", NULL },
	{ "dtype", payload_dtype, NULL, "float32, float16, bfloat16 or uint8.", NULL },
	{ "address", payload_address, NULL,
		"Where it begins. Valid until the match or grant is released, which does not wait "
		"for "
		"whoever has only this number.",
		NULL },
	{ "__array_interface__", payload_interface, NULL,
		"numpy's description; from then on an export until this object ends.", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static const char payload_doc[] =
	"A piece of the cache's memory with a shape: buffer protocol, __array_interface__, DLPack. "
	"Keeps the lease alive.";

static PyType_Slot payload_slots[] = {
	{ Py_tp_new, payload_new },
	{ Py_tp_dealloc, payload_dealloc },
	{ Py_tp_methods, payload_methods },
	{ Py_tp_members, payload_members },
	{ Py_tp_getset, payload_getset },
	{ Py_bf_getbuffer, payload_getbuffer },
	{ Py_bf_releasebuffer, payload_releasebuffer },
	{ Py_tp_doc, (char *)payload_doc },
	{ 0, NULL },
};

static PyType_Spec payload_spec = {
	.name = "kvpool.Payload",
	.basicsize = sizeof(struct payload),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = payload_slots,
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "kvpool._memory",
	.m_size = -1,
	.m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__memory(void);
PyMODINIT_FUNC PyInit__memory(void)
{
	PyObject *m = PyModule_Create(&module), *payload;

	if (!m)
		return NULL;
	held_type = (PyTypeObject *)PyType_FromSpec(&held_spec);
	payload = PyType_FromSpec(&payload_spec);
	if (!held_type || !payload || PyModule_AddObject(m, "Payload", payload) < 0) {
		Py_XDECREF(payload);
		Py_DECREF(m);
		return NULL;
	}
	/* The module's reference and this file's. */
	Py_INCREF(held_type);
	if (PyModule_AddObject(m, "Held", (PyObject *)held_type) < 0) {
		Py_DECREF(held_type);
		Py_DECREF(m);
		return NULL;
	}
	if (match_add(m) < 0) {
		Py_DECREF(m);
		return NULL;
	}
	return m;
}
