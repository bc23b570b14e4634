/* SPDX-License-Identifier: Apache-2.0 */
/* kvrun's command line: its options, their bounds, and which of them go together. */
#include "tools/kvrun/options.h"
#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_kv_pool.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/kvt_output.h"

#define MAX_PROMPTS 4096u

static const char usage[] =
	"usage: kvrun --model PATH [--prompt TEXT | --prompt-file FILE]... [option]...\n"
	"       kvrun --model PATH --perplexity FILE [--window N] [--windows N] [--json]\n"
	"\n"
	"Runs a Llama-family model on the CPU with its KV cache in kvpool, on the CPU or a GPU.\n"
	"\n"
	"  --model PATH         directory with config.json and model.safetensors, or a llama2.c\n"
	"                       \"v0\" file\n"
	"  --tokenizer FILE     llama2.c tokenizer (default: tok<VOCAB>.bin or tokenizer.bin\n"
	"                       beside the model; a vocabulary of bytes needs none)\n"
	"  --prompt TEXT        prompt; may be given several times, each is run on its own\n"
	"  --prompt-file FILE   the same from a file\n"
	"  --lines              each line of standard input is one more prompt\n"
	"  --steps N            most tokens to generate (default 256; 0: only prefill)\n"
	"  --seed N             of the sampler (default 1)\n"
	"  --temperature X      0: always the most probable token (default 0)\n"
	"  --top-p X            sample from the most probable tokens that sum to X (default 0.9)\n"
	"  --kvpool SOCKET|off  where kvpoold listens (default $KVPOOL_SOCKET, else\n"
	"                       /run/kvpool/kvpool.sock); off: private memory only\n"
	"  --no-store           read cached blocks, publish none\n"
	"  --reuse-tail         go on inside a partly matching block too; the result may then\n"
	"                       differ in the last bits from a cold run's\n"
	"  --want-ms N          have blocks of a prompt that were evicted computed by other\n"
	"                       processes first, if they need no longer; at most 3600000\n"
	"  --serve-remat always|idle\n"
	"                       when the prompts are done, compute blocks that other processes\n"
	"                       want, until SIGINT or SIGTERM; idle: what is wanted meanwhile\n"
	"                       is left to others\n"
	"  --serve-rate N       at most so many tokens a second (default 0: any)\n"
	"  --device host|N      read cached blocks on device N of the daemon, or (host) on the\n"
	"                       first that works; what does not come there is read in DRAM\n"
	"  --device cuda:N      keep keys and values on GPU N, in the daemon's memory there, and\n"
	"                       attend on it over blocks where they lie\n"
	"  --device auto        cuda:0 if there is one that can be used, else none\n"
	"  --block-tokens N     16..512 (default 64)\n"
	"  --kv-dtype f32|f16|bf16\n"
	"                       of keys and values (default: the model's own)\n"
	"  --floor NAME         let the daemon code cached blocks down to this codec when memory\n"
	"                       is short; they are attended where they lie\n"
	"  --report-attention N of every N-th generated token, tell the daemon which cached "
	"blocks\n"
	"                       it attends to: a budget spares these; with --floor\n"
	"  --codec NAME         attend over earlier blocks in this codec: tq4, kivi2-g64, fp8,\n"
	"                       tq4/tq2 (keys/values), 4bit, ...; see kvbench codecs\n"
	"  --codec-mode shadow|primary\n"
	"                       shadow: beside the native blocks (default); primary: instead\n"
	"                       of them, which needs --kvpool off\n"
	"  --tiles              attend over tq in 4 bits by matrix tiles (AMX) or, where there\n"
	"                       are none, by bytes (AVX-512 VBMI, VNNI): quicker and a little\n"
	"                       less exact; with --codec\n"
	"  --perplexity FILE    score a text instead of generating\n"
	"  --window N           tokens scored at a time (default 256)\n"
	"  --windows N          how many windows (default 16)\n"
	"  --logits FILE        writes what each token was chosen from: rows of 32-bit floats\n"
	"  --json               one JSON object per result on standard output\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0 done, 1 failed, 2 bad command line, 3 unusable model, tokenizer or text.\n";

enum {
	OPT_MODEL = 256,
	OPT_TOKENIZER,
	OPT_PROMPT,
	OPT_PROMPT_FILE,
	OPT_LINES,
	OPT_STEPS,
	OPT_SEED,
	OPT_TEMPERATURE,
	OPT_TOP_P,
	OPT_KVPOOL,
	OPT_NO_STORE,
	OPT_REUSE_TAIL,
	OPT_WANT_MS,
	OPT_SERVE_REMAT,
	OPT_SERVE_RATE,
	OPT_DEVICE,
	OPT_BLOCK_TOKENS,
	OPT_KV_DTYPE,
	OPT_FLOOR,
	OPT_REPORT_ATTENTION,
	OPT_CODEC,
	OPT_CODEC_MODE,
	OPT_TILES,
	OPT_PERPLEXITY,
	OPT_WINDOW,
	OPT_WINDOWS,
	OPT_LOGITS,
	OPT_JSON,
	OPT_VERSION,
};

static const struct option long_options[] = {
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "tokenizer", required_argument, NULL, OPT_TOKENIZER },
	{ "prompt", required_argument, NULL, OPT_PROMPT },
	{ "prompt-file", required_argument, NULL, OPT_PROMPT_FILE },
	{ "lines", no_argument, NULL, OPT_LINES },
	{ "steps", required_argument, NULL, OPT_STEPS },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "temperature", required_argument, NULL, OPT_TEMPERATURE },
	{ "top-p", required_argument, NULL, OPT_TOP_P },
	{ "kvpool", required_argument, NULL, OPT_KVPOOL },
	{ "no-store", no_argument, NULL, OPT_NO_STORE },
	{ "reuse-tail", no_argument, NULL, OPT_REUSE_TAIL },
	{ "want-ms", required_argument, NULL, OPT_WANT_MS },
	{ "serve-remat", required_argument, NULL, OPT_SERVE_REMAT },
	{ "serve-rate", required_argument, NULL, OPT_SERVE_RATE },
	{ "device", required_argument, NULL, OPT_DEVICE },
	{ "block-tokens", required_argument, NULL, OPT_BLOCK_TOKENS },
	{ "kv-dtype", required_argument, NULL, OPT_KV_DTYPE },
	{ "floor", required_argument, NULL, OPT_FLOOR },
	{ "report-attention", required_argument, NULL, OPT_REPORT_ATTENTION },
	{ "codec", required_argument, NULL, OPT_CODEC },
	{ "codec-mode", required_argument, NULL, OPT_CODEC_MODE },
	{ "tiles", no_argument, NULL, OPT_TILES },
	{ "perplexity", required_argument, NULL, OPT_PERPLEXITY },
	{ "window", required_argument, NULL, OPT_WINDOW },
	{ "windows", required_argument, NULL, OPT_WINDOWS },
	{ "logits", required_argument, NULL, OPT_LOGITS },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ NULL, 0, NULL, 0 },
};

static int complain(const char *name, const char *value, const char *right)
{
	fprintf(stderr, "kvrun: --%s %s: must be %s\n", name, value, right);
	return -EINVAL;
}

static int parse_u64(const char *name, const char *text, uint64_t min, uint64_t max,
	const char *right, uint64_t *ret_value)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || n < min || n > max)
		return complain(name, text, right);
	*ret_value = n;
	return 0;
}

static int parse_u32(const char *name, const char *text, uint32_t min, uint32_t max,
	const char *right, uint32_t *ret_value)
{
	uint64_t n;
	int r = parse_u64(name, text, min, max, right, &n);

	if (r == 0)
		*ret_value = (uint32_t)n;
	return r;
}

static int parse_float(const char *name, const char *text, float max, int zero, const char *right,
	float *ret_value)
{
	char *end;
	float x = strtof(text, &end);

	if (end == text || *end || !(x >= 0 && x <= max) || (!zero && !(x > 0)))
		return complain(name, text, right);
	*ret_value = x;
	return 0;
}

static int parse_dtype(const char *text, struct options *o)
{
	static const enum kvr_dtype all[] = { KVR_F32, KVR_F16, KVR_BF16 };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(text, kvr_dtype_name(all[i])) == 0) {
			o->dtype = all[i];
			o->dtype_given = 1;
			return 0;
		}
	}
	return complain("kv-dtype", text, "f32, f16 or bf16");
}

static int parse_codec(const char *text, struct options *o)
{
	o->codec = text;
	return kvp_codec_parse_pair(text, &o->coded.codec[0], &o->coded.codec[1]) == 0
		       ? 0
		       : complain("codec", text,
				 "a codec, two for keys/values, or a preset: tq4, tq3-nc, fp8, "
				 "kivi4-g64, tq4/tq2, 4bit, k8v4; docs/formats.md has all");
}

static int parse_floor(const char *text, struct options *o)
{
	/* Which codecs can be a floor is the daemon's affair: it says so when the space is opened. */
	return kvp_codec_parse_pair(text, &o->floor[0], &o->floor[1]) == 0 &&
			       (o->floor[0] || o->floor[1])
		       ? 0
		       : complain("floor", text, "a codec, or two for keys/values: tq4, tq4/tq2");
}

static int parse_mode(const char *text, struct options *o)
{
	int primary = strcmp(text, "primary") == 0;

	o->mode_given = 1;
	o->coded.mode = primary ? KVR_PRIMARY : KVR_SHADOW;
	return primary || strcmp(text, "shadow") == 0
		       ? 0
		       : complain("codec-mode", text, "shadow or primary");
}

static int parse_device(const char *text, struct options *o)
{
	static const char right[] = "host, 0..15, cuda:0..cuda:63 or auto";

	o->cuda_or_cpu = strcmp(text, "auto") == 0;
	o->cuda = o->cuda_or_cpu || strncmp(text, "cuda:", 5) == 0;
	o->device = KVR_NO_DEVICE;
	o->ordinal = 0;
	if (o->cuda_or_cpu)
		return 0;
	if (o->cuda)
		return text[5] >= '0' && text[5] <= '9'
			       ? parse_u32("device cuda:", text + 5, 0, 63, right, &o->ordinal)
			       : complain("device", text, right);
	if (strcmp(text, "host") == 0) {
		o->device = KVR_FIRST_DEVICE;
		return 0;
	}
	return parse_u32("device", text, 0, 15, right, &o->device);
}

static int parse_serve(const char *text, struct options *o)
{
	o->serve = 1;
	o->serve_idle = strcmp(text, "idle") == 0;
	return o->serve_idle || strcmp(text, "always") == 0
		       ? 0
		       : complain("serve-remat", text, "always or idle");
}

static int add_prompt(struct options *o, const char *text, const char *path)
{
	struct prompt_source *p;

	if (o->n_prompts == MAX_PROMPTS) {
		fprintf(stderr, "kvrun: more than %u prompts; use --lines\n", MAX_PROMPTS);
		return -E2BIG;
	}
	p = realloc(o->prompt, (o->n_prompts + 1) * sizeof(*p));
	if (!p) {
		fprintf(stderr, "kvrun: no memory\n");
		return -ENOMEM;
	}
	o->prompt = p;
	p[o->n_prompts++] = (struct prompt_source){ text, path };
	return 0;
}

static int apply(struct options *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_MODEL:
		o->model = arg;
		return 0;
	case OPT_TOKENIZER:
		o->tokenizer = arg;
		return 0;
	case OPT_PROMPT:
		return add_prompt(o, arg, NULL);
	case OPT_PROMPT_FILE:
		return add_prompt(o, NULL, arg);
	case OPT_LINES:
		o->lines = 1;
		return 0;
	case OPT_STEPS:
		return parse_u32("steps", arg, 0, 1u << 24, "0..16777216", &o->steps);
	case OPT_SEED:
		return parse_u64("seed", arg, 0, UINT64_MAX, "a number below 2^64", &o->seed);
	case OPT_TEMPERATURE:
		return parse_float("temperature", arg, 100, 1, "0..100", &o->temperature);
	case OPT_TOP_P:
		return parse_float("top-p", arg, 1, 0, "above 0 and at most 1", &o->top_p);
	case OPT_KVPOOL:
		o->off = strcmp(arg, "off") == 0;
		o->socket = arg;
		return 0;
	case OPT_NO_STORE:
		o->store = 0;
		return 0;
	case OPT_REUSE_TAIL:
		o->reuse_tail = 1;
		return 0;
	case OPT_WANT_MS:
		return parse_u32("want-ms", arg, 1, 3600000, "1..3600000", &o->want_ms);
	case OPT_SERVE_REMAT:
		return parse_serve(arg, o);
	case OPT_SERVE_RATE:
		return parse_u32("serve-rate", arg, 0, 1u << 30, "0..1073741824", &o->serve_rate);
	case OPT_DEVICE:
		return parse_device(arg, o);
	case OPT_BLOCK_TOKENS:
		return parse_u32("block-tokens", arg, KVR_BLOCK_TOKENS_MIN, KVR_BLOCK_TOKENS_MAX,
			"16..512", &o->block_tokens);
	case OPT_KV_DTYPE:
		return parse_dtype(arg, o);
	case OPT_FLOOR:
		return parse_floor(arg, o);
	case OPT_REPORT_ATTENTION:
		return parse_u32("report-attention", arg, 1, 65536, "1..65536", &o->report_every);
	case OPT_CODEC:
		return parse_codec(arg, o);
	case OPT_CODEC_MODE:
		return parse_mode(arg, o);
	case OPT_TILES:
		o->coded.tiles = 1;
		return 0;
	case OPT_PERPLEXITY:
		o->perplexity = arg;
		return 0;
	case OPT_WINDOW:
		return parse_u32("window", arg, 1, 1u << 24, "1..16777216", &o->window);
	case OPT_WINDOWS:
		return parse_u32("windows", arg, 1, 1u << 24, "1..16777216", &o->windows);
	case OPT_LOGITS:
		o->logits = arg;
		return 0;
	default:
		o->json = 1;
		return 0;
	}
}

/* Both are about blocks of kvpool in memory of the CPU. */
static int check_remat(const struct options *o)
{
	if (o->serve && (o->off || o->perplexity || !o->store || o->cuda)) {
		fprintf(stderr,
			"kvrun: --serve-remat publishes blocks in the CPU's memory: leave out "
			"--kvpool off, --perplexity, --no-store and --device cuda:N\n");
		return -EINVAL;
	}
	if (o->want_ms && (o->off || o->perplexity || o->cuda)) {
		fprintf(stderr,
			"kvrun: --want-ms is about cached blocks in the CPU's memory: leave "
			"out --kvpool off, --perplexity and --device cuda:N\n");
		return -EINVAL;
	}
	return 0;
}

/* Blocks of a space with a floor are coded by the daemon, in memory that the CPU reads. */
static int check_floor(const struct options *o)
{
	if ((o->floor[0] || o->floor[1]) && (o->off || o->perplexity || o->cuda || o->codec)) {
		fprintf(stderr,
			"kvrun: --floor is about cached blocks in the CPU's memory: leave out "
			"--kvpool off, --perplexity, --codec and --device cuda:N\n");
		return -EINVAL;
	}
	if (o->report_every && !o->floor[0] && !o->floor[1]) {
		fprintf(stderr, "kvrun: --report-attention is about blocks that may be coded: add "
				"--floor\n");
		return -EINVAL;
	}
	if (o->logits && o->perplexity) {
		fprintf(stderr, "kvrun: --logits is about tokens that are generated: leave out "
				"--perplexity\n");
		return -EINVAL;
	}
	return 0;
}

static int check(const struct options *o)
{
	if (!o->model) {
		fprintf(stderr, "kvrun: --model is missing; see kvrun --help\n");
		return -EINVAL;
	}
	if (o->mode_given && !o->codec) {
		fprintf(stderr, "kvrun: --codec-mode without --codec: name a codec\n");
		return -EINVAL;
	}
	if (o->coded.tiles && !o->codec) {
		fprintf(stderr,
			"kvrun: --tiles without --codec: tiles are for blocks in a codec\n");
		return -EINVAL;
	}
	if (o->codec && o->coded.mode == KVR_PRIMARY && !o->off && !o->perplexity) {
		fprintf(stderr, "kvrun: --codec-mode primary keeps no native blocks, and these are "
				"what kvpool shares: add --kvpool off, or use shadow\n");
		return -EINVAL;
	}
	if (o->codec && o->cuda) {
		fprintf(stderr, "kvrun: --codec attends on the CPU: leave out --device cuda:%u\n",
			o->ordinal);
		return -EINVAL;
	}
	if (!o->perplexity && !o->n_prompts && !o->lines && !o->serve) {
		fprintf(stderr, "kvrun: nothing to run: give --prompt, --prompt-file, --lines, "
				"--perplexity or --serve-remat\n");
		return -EINVAL;
	}
	return check_floor(o) < 0 ? -EINVAL : check_remat(o);
}

int options_parse(int argc, char **argv, struct options *ret_options, int *ret_exit)
{
	struct options o = {
		.steps = 256,
		.seed = 1,
		.top_p = 0.9f,
		.store = 1,
		.device = KVR_NO_DEVICE,
		.block_tokens = KVR_BLOCK_TOKENS_DEFAULT,
		.window = 256,
		.windows = 16,
	};
	int opt, r = 0;

	while (r == 0 && (opt = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		if (opt == 'h' || opt == OPT_VERSION) {
			fputs(opt == 'h' ? usage : "kvrun " KVRUN_VERSION "\n", stdout);
			options_done(&o);
			*ret_exit = kvt_written("kvrun", 0, 1);
			return -ECANCELED;
		}
		r = opt == '?' ? -EINVAL : apply(&o, opt, optarg);
	}
	if (r == 0 && optind < argc) {
		fprintf(stderr, "kvrun: unexpected argument \"%s\"\n", argv[optind]);
		r = -EINVAL;
	}
	if (r == 0)
		r = check(&o);
	if (r < 0) {
		options_done(&o);
		*ret_exit = 2;
		return r;
	}
	*ret_options = o;
	return 0;
}

void options_done(struct options *o)
{
	free(o->prompt);
	o->prompt = NULL;
}
