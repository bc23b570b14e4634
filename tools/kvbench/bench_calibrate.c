/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench calibrate: a calibration for the codecs pca or kvquant, of the keys, values, queries and output
 * projections of a model that runs here, or of what another engine dumped.
 */
#include "tools/kvbench/bench.h"
#include "tools/kvbench/calib_fit.h"
#include "tools/kvbench/calib_samples.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvbench/nuq_fit.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXTS_MAX 8
#define ROUND     0.4f

struct args {
	const char *model, *dump, *out, *bits, *name, *theta, *pairing, *codec;
	const char *texts[TEXTS_MAX];
	size_t n_texts;
	uint64_t tokens, joint;
	double rate, base; /* of `bits`, of `theta` */
	bool json;
};

static int parse_number(const char *option, const char *text, double min, double max, double *ret)
{
	char *end;
	double v = strtod(text, &end);

	if (*text && !*end && v >= min && v <= max) {
		*ret = v;
		return 0;
	}
	fprintf(stderr, "kvbench calibrate: --%s takes a number from %g to %g, not '%s'\n", option,
		min, max, text);
	return -EINVAL;
}

static int check(struct args *a)
{
	if (!a->out || !a->model == !a->dump || !a->model != !a->n_texts) {
		fprintf(stderr, "kvbench calibrate: needs --out FILE, and --model DIR with --text "
				"FILE, or --dump FILE\n");
		return -EINVAL;
	}
	if (a->dump && (!a->pairing || (strcmp(a->pairing, "none") && strcmp(a->pairing, "half") &&
					       strcmp(a->pairing, "interleaved")))) {
		fprintf(stderr, "kvbench calibrate: --dump needs --rope none, half or interleaved: "
				"what the keys have on\n");
		return -EINVAL;
	}
	if (strcmp(a->codec, "pca") != 0 && strcmp(a->codec, "kvquant") != 0) {
		fprintf(stderr, "kvbench calibrate: --codec takes pca or kvquant, not '%s'\n",
			a->codec);
		return -EINVAL;
	}
	return parse_number("bits", a->bits, 0.1, 8.0, &a->rate) ||
			       parse_number("theta", a->theta, 2.0, 1e12, &a->base)
		       ? -EINVAL
		       : 0;
}

static int parse(int argc, char **argv, struct args *a)
{
	const struct bench_option options[] = {
		{ .name = "model",
			.help = "folder of a model, as for kvrun",
			.text = &a->model,
			.takes = "DIR" },
		{ .name = "text",
			.help = "that it reads; may be given several times",
			.text = a->texts,
			.takes = "FILE",
			.max = TEXTS_MAX,
			.times = &a->n_texts },
		{ .name = "dump",
			.help = "instead: a .safetensors file (docs/quality.md)",
			.text = &a->dump,
			.takes = "FILE" },
		{ .name = "rope",
			.help = "of a dump's keys",
			.text = &a->pairing,
			.takes = "none|half|interleaved" },
		{ .name = "theta",
			.help = "likewise (default 10000)",
			.text = &a->theta,
			.takes = "X" },
		{ .name = "name",
			.help = "of the model (default: of its folder or file)",
			.text = &a->name,
			.takes = "NAME" },
		{ .name = "codec",
			.help = "that it is for (default pca)",
			.text = &a->codec,
			.takes = "pca|kvquant" },
		{ .name = "bits",
			.help = "pca: an element, that payloads should take (default 1.5)",
			.text = &a->bits,
			.takes = "X" },
		{ .name = "tokens",
			.help = "to sample (default 16384)",
			.value = &a->tokens,
			.min = 64,
			.max = 1u << 20 },
		{ .name = "joint",
			.help = "pca: heads to transform together (default: up to 512 channels)",
			.value = &a->joint,
			.min = 1,
			.max = 64 },
		{ .name = "out", .help = "the calibration", .text = &a->out, .takes = "FILE" },
		{ .name = "json", .help = "one JSON document on stdout", .flag = &a->json },
	};
	int r = bench_parse(argc, argv,
		"A calibration for the codec pca: axes, step and tables of each layer's keys and "
		"values;\nor for kvquant: channels' ranges and signposts.",
		options, sizeof options / sizeof *options);

	if (r <= 0)
		return r ? -EINVAL : 1;
	return check(a);
}

/* As many heads as a transform may have channels. */
static uint32_t joint_of(uint32_t heads, uint32_t dim)
{
	uint32_t joint = heads;

	while (joint > 1 && (heads % joint || joint * dim > KVP_CALIB_WIDTH_MAX))
		joint--;
	return joint;
}

/* Whole or not at all: whoever has the old file open keeps it. */
static int save(const char *path, const void *data, size_t bytes)
{
	char *temporary;
	FILE *f;
	int ok;

	if (asprintf(&temporary, "%s.new", path) < 0)
		return -ENOMEM;
	f = fopen(temporary, "wb");
	ok = f && fwrite(data, 1, bytes, f) == bytes;
	if (f && (fclose(f) || !ok || rename(temporary, path)))
		ok = 0;
	if (!ok) {
		fprintf(stderr, "kvbench calibrate: %s: %s\n", path, strerror(errno));
		unlink(temporary);
	}
	free(temporary);
	return ok ? 0 : -EIO;
}

static void report(const struct args *a, const struct fit_job *job, const struct fit_result *f)
{
	const char *line =
		a->json ? "{\"file\":\"%s\",\"model\":\"%s\",\"layers\":%u,\"heads\":%u,\"dim\":%u,"
			  "\"joint\":%u,\"tokens\":%zu,\"bits_k\":%.4f,\"bits_v\":%.4f,\"rank_"
			  "min\":%u,"
			  "\"rank_max\":%u,\"tables_max\":%u,\"bytes\":%zu}\n"
			: "%s: %s, %u layers of %u heads of %u channels, %u together; %zu tokens; "
			  "%.3f bits a key's element, %.3f a value's; rank %u to %u, up to %u "
			  "tables; "
			  "%zu bytes\n";

	printf(line, a->out, job->info.model, job->info.layers, job->info.heads, job->info.dim,
		job->info.joint, job->plane[0].tokens, f->bits[0], f->bits[1], f->rank_min,
		f->rank_max, f->tables_max, f->bytes);
}

static int fit(const struct args *a, const struct samples *s)
{
	struct fit_job job = { .info = s->info, .n = 2 * (size_t)s->info.layers, .bits = a->rate };
	struct fit_plane *plane = calloc(job.n, sizeof *plane);
	struct fit_result result;
	int r;

	if (!plane)
		return -ENOMEM;
	job.plane = plane;
	job.info.round = ROUND;
	job.info.joint = a->joint ? (uint32_t)a->joint : joint_of(job.info.heads, job.info.dim);
	if (job.info.heads % job.info.joint ||
		job.info.joint * job.info.dim > KVP_CALIB_WIDTH_MAX) {
		fprintf(stderr,
			"kvbench calibrate: %u heads of %u channels cannot go %u together\n",
			job.info.heads, job.info.dim, job.info.joint);
		free(plane);
		return -EINVAL;
	}
	for (size_t i = 0; i < job.n; i++)
		plane[i] = (struct fit_plane){ (uint32_t)i / 2, i % 2, s->tokens, s->x[i],
			s->metric[i] };
	r = kvbench_fit(&job, &result);
	if (r < 0) {
		fprintf(stderr, "kvbench calibrate: %s\n",
			r == -EINVAL ? "too few tokens, or no keys and values" : strerror(-r));
	} else {
		r = save(a->out, result.file, result.bytes);
		if (!r)
			report(a, &job, &result);
		free(result.file);
	}
	free(plane);
	return r;
}

static int fit_nuq(const struct args *a, const struct samples *s)
{
	const char *line = a->json ? "{\"file\":\"%s\",\"model\":\"%s\",\"layers\":%u,\"heads\":%u,"
				     "\"dim\":%u,\"tokens\":%zu,\"outside\":%.4f,\"bytes\":%zu}\n"
				   : "%s: %s, %u layers of %u heads of %u channels; %zu tokens; "
				     "%.4f of keys outside their ranges; %zu bytes\n";
	struct nuq_result result;
	int r = kvbench_nuq_fit(s, &result);

	if (r < 0) {
		fprintf(stderr, "kvbench calibrate: %s\n",
			r == -EINVAL ? "too few tokens, or no keys and values" : strerror(-r));
		return r;
	}
	r = save(a->out, result.file, result.bytes);
	if (!r)
		printf(line, a->out, s->info.model, s->info.layers, s->info.heads, s->info.dim,
			s->tokens, result.outside, result.bytes);
	free(result.file);
	return r;
}

int kvbench_calibrate(int argc, char **argv)
{
	struct args a = { .codec = "pca", .bits = "1.5", .theta = "10000", .tokens = 16384 };
	struct samples s = { 0 };
	int r = parse(argc, argv, &a);

	if (r)
		return r < 0 ? 2 : 0;
	if (a.model) {
		r = kvbench_samples_of_model(a.model, a.texts, a.n_texts, (size_t)a.tokens, &s);
	} else {
		const struct kvp_rope_desc rope = { .pairing = !strcmp(a.pairing, "none")
								       ? KVP_ROPE_NONE
							       : !strcmp(a.pairing, "half")
								       ? KVP_ROPE_HALF_SPLIT
								       : KVP_ROPE_INTERLEAVED,
			.theta = a.base };

		r = kvbench_samples_of_dump(a.dump, &rope, (size_t)a.tokens, &s);
	}
	if (!r && a.name) {
		memset(s.info.model, 0, sizeof s.info.model);
		strncpy(s.info.model, a.name, sizeof s.info.model - 1);
	}
	if (!r)
		r = strcmp(a.codec, "kvquant") == 0 ? fit_nuq(&a, &s) : fit(&a, &s);
	kvbench_samples_done(&s);
	return r < 0 ? 1 : 0;
}
