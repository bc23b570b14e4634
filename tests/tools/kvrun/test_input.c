/* SPDX-License-Identifier: Apache-2.0 */
/* Files from outside: conversions, config.json, safetensors headers, whole model directories. */
#include "tests/tools/kvrun/common.h"
#include "tools/kvrun/kvr_config.h"
#include "tools/kvrun/kvr_file.h"
#include "tools/kvrun/kvr_safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- half.c ---------------------------------------------------------------------------------- */

/* The value of a half by its definition. */
static double f16_value(uint16_t h)
{
	int exp = (h >> 10) & 0x1f, man = h & 0x3ff;
	double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);

	if (exp == 0x1f)
		v = man ? NAN : INFINITY;
	return h & 0x8000 ? -v : v;
}

/* 16 at once take the vector path where there is one, single ones never do. */
static void halves_widen_exactly(void **unused)
{
	uint16_t h[16];
	float f[16], one;

	(void)unused;
	for (uint32_t base = 0; base < 65536; base += 16) {
		for (uint32_t i = 0; i < 16; i++)
			h[i] = (uint16_t)(base + i);
		kvr_widen(KVR_F16, h, 16, f);
		for (uint32_t i = 0; i < 16; i++) {
			double want = f16_value(h[i]);
			uint16_t back[8], back_one;

			kvr_widen(KVR_F16, &h[i], 1, &one);
			assert_memory_equal(&one, &f[i], sizeof(one));
			assert_true(isnan(want) ? isnan(one) : (double)one == want);
			kvr_narrow(KVR_F16, &one, 1, &back_one);
			kvr_narrow(KVR_F16, (float[8]){ one }, 8, back);
			assert_int_equal(back_one, back[0]);
			if (!isnan(want))
				assert_int_equal(back_one, h[i]);
		}
	}
}

static void halves_round_to_nearest_even(void **unused)
{
	uint64_t state = test_seed();
	uint16_t h, wide[8], lower;

	(void)unused;
	for (int i = 0; i < 1000000; i++) {
		uint32_t u = (uint32_t)(test_random(&state) >> 32);
		double below, above;
		float f;

		if (i & 1) /* biased to what a half can hold */
			u = (u & 0x8fffffff) | 0x30000000;
		memcpy(&f, &u, sizeof(f));
		kvr_narrow(KVR_F16, &f, 1, &h);
		kvr_narrow(KVR_F16, (float[8]){ f }, 8, wide);
		assert_int_equal(h, wide[0]);
		if (isnan(f)) {
			assert_true(isnan(f16_value(h)));
			continue;
		}
		assert_int_equal(h >> 15, signbit(f) != 0);
		if (fabsf(f) >= 65520) {
			assert_int_equal(h & 0x7fff, 0x7c00);
			continue;
		}
		/* nearer than both neighbours, or as near as one and even */
		above = fabs(f16_value((uint16_t)(h + 1)) - f);
		lower = (uint16_t)(h - 1);
		below = h & 0x7fff ? fabs(f16_value(lower) - f) : INFINITY;
		assert_true(fabs(f16_value(h) - f) <= fmin(above, below));
		if (!(fabs(f16_value(h) - f) < fmin(above, below)))
			assert_int_equal(h & 1, 0);
	}
}

static void bfloats_round_to_nearest_even(void **unused)
{
	static const struct {
		uint32_t from;
		uint16_t to;
	} cases[] = {
		{ 0x3f800000, 0x3f80 },
		{ 0x3f808000, 0x3f80 },
		{ 0x3f818000, 0x3f82 },
		{ 0x3f808001, 0x3f81 },
		{ 0x7f7fffff, 0x7f80 },
		{ 0x7f800000, 0x7f80 },
		{ 0x7f800001, 0x7fc0 },
		{ 0xff800000, 0xff80 },
		{ 0x80000000, 0x8000 },
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint32_t back;
		uint16_t h;
		float f;

		memcpy(&f, &cases[i].from, sizeof(f));
		kvr_narrow(KVR_BF16, &f, 1, &h);
		assert_int_equal(h, cases[i].to);
		kvr_widen(KVR_BF16, &h, 1, &f);
		memcpy(&back, &f, sizeof(back));
		assert_int_equal(back, (uint32_t)h << 16);
	}
}

/* ---- config.c -------------------------------------------------------------------------------- */

#define CONFIG_BASE                                                                             \
	"\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32," \
	"\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,"           \
	"\"num_key_value_heads\":2,\"vocab_size\":64,\"max_position_embeddings\":128,"          \
	"\"rms_norm_eps\":1e-5,\"bos_token_id\":1,\"eos_token_id\":[2,3],"                      \
	"\"torch_dtype\":\"bfloat16\""

static int parse_config(const char *json, struct kvr_config *c)
{
	struct kvr_error err = { "" };
	int r = kvr_config_parse(json, strlen(json), &err, c);

	assert_int_equal(r < 0, err.text[0] != '\0');
	return r;
}

static void config_is_read(void **unused)
{
	struct kvr_config c;

	(void)unused;
	assert_int_equal(parse_config("{" CONFIG_BASE "}", &c), 0);
	assert_int_equal(c.hidden, 32);
	assert_int_equal(c.head_dim, 8);
	assert_int_equal(c.kv_heads, 2);
	assert_int_equal(c.dtype, KVR_BF16);
	assert_int_equal(c.n_eos, 2);
	assert_int_equal(c.eos[1], 3);
	assert_true(c.rope_theta == 10000);
	assert_false(c.tied);
	/* newer files keep theta elsewhere */
	assert_int_equal(parse_config("{" CONFIG_BASE ",\"head_dim\":16,\"rope_parameters\":"
				      "{\"rope_type\":\"default\",\"rope_theta\":5e5}}",
				 &c),
		0);
	assert_true(c.rope_theta == 5e5);
	assert_int_equal(c.head_dim, 16);
}

static void config_is_refused(void **unused)
{
	static const struct {
		const char *json;
		int code;
	} cases[] = {
		{ "", -EINVAL },
		{ "[]", -EINVAL },
		{ "{}", -ENOTSUP },
		{ "{\"architectures\":[\"LlamaForCausalLM\"]}", -EINVAL },
		{ "{\"architectures\":[\"Qwen2ForCausalLM\"]}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"hidden_size\":32}", -EINVAL }, /* twice */
		{ "{" CONFIG_BASE ",\"hidden_act\":\"gelu\"}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"attention_bias\":true}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"mlp_bias\":1}", -EINVAL },
		{ "{" CONFIG_BASE ",\"quantization_config\":{}}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"sliding_window\":4096}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"partial_rotary_factor\":0.5}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"rope_scaling\":{\"type\":7}}", -ENOTSUP },
		{ "{" CONFIG_BASE ",\"rope_scaling\":3}", -EINVAL },
		{ "{" CONFIG_BASE ",\"rope_theta\":0}", -EINVAL },
		{ "{" CONFIG_BASE ",\"rope_theta\":\"x\"}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":0}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":7}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":-8}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":8.0}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":1000000}", -EINVAL },
		{ "{" CONFIG_BASE ",\"head_dim\":99999999999999999999}", -EINVAL },
		{ "{" CONFIG_BASE ",\"tie_word_embeddings\":\"yes\"}", -EINVAL },
	};
	static const char *const numbers[] = { "hidden_size", "intermediate_size",
		"num_hidden_layers", "num_attention_heads", "vocab_size",
		"max_position_embeddings" };
	struct kvr_config c, before;
	char json[1024];

	(void)unused;
	memset(&c, 0x5a, sizeof(c));
	before = c;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(parse_config(cases[i].json, &c), cases[i].code);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		static const char *const bad[] = { "0", "-1", "4294967297", "null", "\"4\"" };

		for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
			const char *from = strstr("{" CONFIG_BASE "}", numbers[i]);
			const char *base = "{" CONFIG_BASE "}";
			const char *colon = strchr(from, ':');

			snprintf(json, sizeof(json), "%.*s%s%s", (int)(colon + 1 - base), base,
				bad[k], colon + 1 + strcspn(colon + 1, ",}"));
			assert_int_equal(parse_config(json, &c), -EINVAL);
		}
	}
	assert_memory_equal(&c, &before, sizeof(c));
}

/* ---- safetensors.c --------------------------------------------------------------------------- */

static int parse_st(const char *json, uint64_t data_bytes, struct kvr_st *st)
{
	struct kvr_error err = { "" };
	int r = kvr_st_parse(json, strlen(json), 8 + strlen(json) + data_bytes, &err, st);

	assert_int_equal(r < 0, err.text[0] != '\0');
	return r;
}

static void header_is_read(void **unused)
{
	struct kvr_st st;

	(void)unused;
	assert_int_equal(
		parse_st("{\"__metadata__\":{\"format\":\"pt\"},"
			 "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
			 "\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
			 "\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[12,12]}}"
			 "   ",
			16, &st),
		0);
	assert_int_equal(st.n_tensors, 3);
	assert_string_equal(st.tensors[0].name, "a");
	assert_int_equal(st.tensors[0].dims[1], 3);
	assert_int_equal(kvr_st_find(&st, "b")->begin, 12);
	assert_int_equal(kvr_st_find(&st, "b")->n_dims, 0);
	assert_null(kvr_st_find(&st, "__metadata__"));
	kvr_st_done(&st);
}

#define T(name, dtype, shape, range) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"

static void header_is_refused(void **unused)
{
	static const char *const cases[] = {
		"",
		"7",
		"{",
		"{}", /* leaves the data bytes unclaimed */
		"{\"a\":1}",
		"{" T("a", "F16", "[8]", "[0,16]") "," T("a", "F16", "[8]", "[0,16]") "}",
		"{" T("a", "F17", "[8]", "[0,16]") "}",
		"{" T("a", "F16", "[-8]", "[0,16]") "}",
		"{" T("a", "F16", "[8.0]", "[0,16]") "}",
		"{" T("a", "F16", "8", "[0,16]") "}",
		"{" T("a", "F16", "[1,1,1,1,1,1,1,1,8]", "[0,16]") "}",
		"{" T("a", "F16", "[9]", "[0,16]") "}",
		"{" T("a", "F16", "[7]", "[0,16]") "}",
		"{" T("a", "F16", "[8]", "[0]") "}",
		"{" T("a", "F16", "[8]", "[0,16,16]") "}",
		"{" T("a", "F16", "[8]", "[16,0]") "}",
		"{" T("a", "F16", "[8]", "[-16,0]") "}",
		"{" T("a", "F16", "[16]", "[0,32]") "}", /* beyond the file */
		"{" T("a", "F16", "[7]", "[0,14]") "}",  /* trailing bytes */
		"{" T("a", "F16", "[6]", "[4,16]") "}",  /* a hole in front */
		"{" T("a", "F16", "[5]", "[0,10]") "," T("b", "F16", "[4]", "[8,16]") "}",
		"{" T("a", "F16", "[8]", "[0,16]") "," T("b", "F16", "[8]", "[0,16]") "}",
		/* products that overflow to something that fits */
		"{" T("a", "F16", "[4294967296,4294967296]", "[0,0]") "}",
		"{" T("a", "F64", "[2305843009213693954]", "[0,16]") "}",
		"{" T("a", "F16", "[9223372036854775807,2]", "[0,16]") "}",
		"{" T("a", "F16", "[8]", "[0,18446744073709551632]") "}",
	};
	struct kvr_st st, before;
	char deep[6000];

	(void)unused;
	memset(&st, 0x5a, sizeof(st));
	before = st;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(parse_st(cases[i], 16, &st), -EINVAL);
	memset(deep, '[', sizeof(deep) - 1);
	deep[sizeof(deep) - 1] = '\0';
	assert_int_equal(parse_st(deep, 16, &st), -EINVAL);
	snprintf(deep, sizeof(deep),
		"{\"%0300d\":{\"dtype\":\"U8\",\"shape\":[16],"
		"\"data_offsets\":[0,16]}}",
		0);
	assert_int_equal(parse_st(deep, 16, &st), -EINVAL);
	assert_memory_equal(&st, &before, sizeof(st));
}

static void header_length_is_bounded(void **unused)
{
	static const struct {
		uint8_t prefix[8];
		uint64_t file_bytes;
		int code;
	} cases[] = {
		{ { 2 }, 10, 0 },
		{ { 2 }, 9, -EINVAL },
		{ { 2 }, 0, -EINVAL },
		{ { 1 }, 100, -EINVAL },
		{ { 0, 0, 0, 1 }, UINT64_C(1) << 40, 0 },
		{ { 1, 0, 0, 1 }, UINT64_C(1) << 40, -EINVAL },
		{ { 255, 255, 255, 255, 255, 255, 255, 255 }, UINT64_MAX, -EINVAL },
		{ { 248, 255, 255, 255, 255, 255, 255, 255 }, 100, -EINVAL },
	};
	struct kvr_error err;
	size_t bytes;

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(
			kvr_st_header_length(cases[i].prefix, cases[i].file_bytes, &err, &bytes),
			cases[i].code);
}

/* ---- model.c --------------------------------------------------------------------------------- */

struct copy {
	char dir[64];
	char config[128], weights[128];
	char *config_data, *data;
	size_t config_bytes, bytes;
};

static void write_file(const char *path, const void *data, size_t bytes)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, bytes, f), bytes);
	assert_int_equal(fclose(f), 0);
}

/* A private copy of bytes-4m that a test may damage. */
static int copy_model(void **state)
{
	static struct copy c;
	char path[4096];

	snprintf(c.dir, sizeof(c.dir), "/tmp/kvrun-test-XXXXXX");
	if (!mkdtemp(c.dir))
		return -1;
	snprintf(c.config, sizeof(c.config), "%s/config.json", c.dir);
	snprintf(c.weights, sizeof(c.weights), "%s/model.safetensors", c.dir);
	snprintf(path, sizeof(path), "%s/config.json", test_bytes4m());
	if (kvr_file_load(path, 1 << 20, NULL, &c.config_data, &c.config_bytes) < 0)
		return -1;
	snprintf(path, sizeof(path), "%s/model.safetensors", test_bytes4m());
	if (kvr_file_load(path, 1 << 24, NULL, &c.data, &c.bytes) < 0)
		return -1;
	write_file(c.config, c.config_data, c.config_bytes);
	write_file(c.weights, c.data, c.bytes);
	*state = &c;
	return 0;
}

static int remove_copy(void **state)
{
	struct copy *c = *state;

	unlink(c->config);
	unlink(c->weights);
	rmdir(c->dir);
	free(c->config_data);
	free(c->data);
	return 0;
}

/* Must fail with `code` and a message that names `file` and contains `hint`. */
static void expect(const struct copy *c, int code, const char *file, const char *hint)
{
	struct kvr_model *m = NULL;
	struct kvr_error err;
	int r = kvr_model_open(c->dir, &err, &m);

	print_message("%d: %s\n", r, err.text);
	assert_int_equal(r, code);
	assert_null(m);
	assert_int_equal(strncmp(err.text, file, strlen(file)), 0);
	assert_non_null(strstr(err.text, hint));
}

static void edit_config(const struct copy *c, const char *from, const char *to)
{
	char *at = strstr(c->config_data, from);
	char out[2048];
	int n;

	assert_non_null(at);
	n = snprintf(out, sizeof(out), "%.*s%s%s", (int)(at - c->config_data), c->config_data, to,
		at + strlen(from));
	write_file(c->config, out, (size_t)n);
}

static void damaged_models_are_refused(void **state)
{
	struct copy *c = *state;
	struct kvr_error err;
	struct kvr_model *m;
	char *at;

	assert_int_equal(kvr_model_open(c->dir, &err, &m), 0);
	kvr_model_free(m);

	write_file(c->weights, c->data, c->bytes - 1);
	expect(c, -EINVAL, c->weights, "truncated");
	write_file(c->weights, c->data, 4000);
	expect(c, -EINVAL, c->weights, "truncated");
	write_file(c->weights, c->data, 7);
	expect(c, -EINVAL, c->weights, "truncated");
	write_file(c->weights, c->data, 0);
	expect(c, -EINVAL, c->weights, "truncated");
	write_file(c->weights, "this is not a model at all", 26);
	expect(c, -EINVAL, c->weights, "not a safetensors file");
	at = memmem(c->data, 5000, "q_proj", 6);
	assert_non_null(at);
	memcpy(at, "x_proj", 6);
	write_file(c->weights, c->data, c->bytes);
	expect(c, -EINVAL, c->weights, "q_proj.weight\" is missing");
	memcpy(at, "q_proj", 6);
	unlink(c->weights);
	expect(c, -ENOENT, c->weights, "No such file");
	assert_int_equal(mkfifo(c->weights, 0600), 0);
	expect(c, -EINVAL, c->weights, "not a regular file");
	unlink(c->weights);
	write_file(c->weights, c->data, c->bytes);

	/* a configuration of another model: more layers, another width, separate classifier */
	edit_config(c, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
	expect(c, -EINVAL, c->weights, "is missing");
	edit_config(c, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3");
	expect(c, -ENOTSUP, c->weights, "model.layers.3.");
	edit_config(c, "\"intermediate_size\": 704", "\"intermediate_size\": 262144");
	expect(c, -EINVAL, c->weights, "must have the shape [262144, 256]");
	edit_config(c, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
	expect(c, -EINVAL, c->weights, "lm_head.weight\" is missing");
	edit_config(c, "\"LlamaForCausalLM\"", "\"MambaForCausalLM\"");
	expect(c, -ENOTSUP, c->config, "MambaForCausalLM");
	edit_config(c, "{", "{,");
	expect(c, -EINVAL, c->config, "not valid JSON: line 1");
	write_file(c->config, c->config_data, c->config_bytes);
	assert_int_equal(kvr_model_open(c->dir, &err, &m), 0);
	kvr_model_free(m);
}

/* Random damage to the header: refused with a message, or harmless; never more. */
static void header_bytes_may_be_anything(void **state)
{
	struct copy *c = *state;
	uint64_t seed = test_seed();
	uint32_t refused = 0;

	for (int i = 0; i < 300; i++) {
		size_t at = 8 + (test_random(&seed) >> 32) % 4336;
		char was = c->data[at];
		struct kvr_error err = { "" };
		struct kvr_model *m;
		int r;

		c->data[at] = (char)(test_random(&seed) >> 56);
		write_file(c->weights, c->data, c->bytes);
		r = kvr_model_open(c->dir, &err, &m);
		if (r == 0)
			kvr_model_free(m);
		else
			assert_true(r < 0 && strlen(err.text) > strlen(c->weights));
		refused += r < 0;
		c->data[at] = was;
	}
	print_message("%u of 300 refused\n", refused);
	assert_true(refused > 250);
	write_file(c->weights, c->data, c->bytes);
}

static void v0_files_are_checked(void **state)
{
	struct copy *c = *state;
	int32_t header[7] = { 64, 172, 5, 8, 4, 512, 512 };
	struct kvr_error err;
	struct kvr_model *m;
	char path[128];

	snprintf(path, sizeof(path), "%s/model.bin", c->dir);
	for (int i = -1; i < 7; i++) {
		int32_t bad[7];

		memcpy(bad, header, sizeof(bad));
		if (i >= 0)
			bad[i] = i % 2 ? 0 : INT32_MIN;
		write_file(path, bad, sizeof(bad));
		assert_int_equal(kvr_model_open(path, &err, &m), -EINVAL);
		assert_non_null(strstr(err.text, i < 0 ? "truncated" : "v0"));
	}
	header[3] = 3; /* heads that do not divide the width */
	write_file(path, header, sizeof(header));
	assert_int_equal(kvr_model_open(path, &err, &m), -EINVAL);
	write_file(path, header, 20);
	assert_int_equal(kvr_model_open(path, &err, &m), -EINVAL);
	unlink(path);
	assert_int_equal(kvr_model_open(path, &err, &m), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(halves_widen_exactly),
		cmocka_unit_test(halves_round_to_nearest_even),
		cmocka_unit_test(bfloats_round_to_nearest_even),
		cmocka_unit_test(config_is_read),
		cmocka_unit_test(config_is_refused),
		cmocka_unit_test(header_is_read),
		cmocka_unit_test(header_is_refused),
		cmocka_unit_test(header_length_is_bounded),
		cmocka_unit_test_setup_teardown(
			damaged_models_are_refused, copy_model, remove_copy),
		cmocka_unit_test_setup_teardown(
			header_bytes_may_be_anything, copy_model, remove_copy),
		cmocka_unit_test_setup_teardown(v0_files_are_checked, copy_model, remove_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
