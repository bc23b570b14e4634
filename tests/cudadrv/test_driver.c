/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each misuse that the simulated driver knows is reported by its name, with the error that CUDA has
 * for it, and its corrected twin passes without any report.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudadrv/child.h"
#include "tests/cudadrv/misuses.h"

static void every_misuse_is_reported(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < n_misuses; i++) {
		uint64_t of_kind;

		assert_int_equal(cudadrv_forget(machine), 0);
		if (child_run(misuses[i].wrong) != 0)
			fail_msg("%s, wrong: the child failed", misuses[i].name);
		of_kind = cudadrv_reports(machine, misuses[i].kind);
		if (of_kind == 0)
			fail_msg("%s: not reported as %s", misuses[i].name,
				cudadrv_report_name(misuses[i].kind));
		if (of_kind != cudadrv_reports(machine, CUDADRV_REPORTS_N))
			fail_msg("%s: also reported as something else", misuses[i].name);
	}
}

static void every_twin_passes(void **state)
{
	(void)state;
	assert_int_equal(cudadrv_forget(machine), 0);
	for (uint32_t i = 0; i < n_misuses; i++) {
		if (child_run(misuses[i].right) != 0)
			fail_msg("%s, right: the child failed", misuses[i].name);
		if (cudadrv_reports(machine, CUDADRV_REPORTS_N) != 0)
			fail_msg("%s, right: something was reported", misuses[i].name);
	}
}

static void every_report_has_a_misuse(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < CUDADRV_REPORTS_N; kind++) {
		bool found = false;

		for (uint32_t i = 0; i < n_misuses; i++)
			found = found || misuses[i].kind == kind;
		if (!found)
			fail_msg("nothing here provokes %s", cudadrv_report_name(kind));
	}
}

static const struct misuse *of_name(const char *name)
{
	for (uint32_t i = 0; i < n_misuses; i++)
		if (!strcmp(misuses[i].name, name))
			return &misuses[i];
	return NULL;
}

static void every_question_is_answered(void **state)
{
	(void)state;
	assert_int_equal(cudadrv_forget(machine), 0);
	for (uint32_t i = 0; i < n_questions; i++) {
		if (child_run(questions[i].ask) != 0)
			fail_msg("%s: the child failed", questions[i].name);
		if (cudadrv_reports(machine, CUDADRV_REPORTS_N) != 0)
			fail_msg("%s: something was reported", questions[i].name);
	}
}

/* The file has a line for each report: name, process, program, what was done. */
static void reports_are_lines(void **state)
{
	char path[100], line[400] = "";
	FILE *f;

	(void)state;
	assert_int_equal(cudadrv_forget(machine), 0);
	assert_int_equal(child_run(of_name("map_offset")->wrong), 0);
	snprintf(path, sizeof(path), "%s/reports", machine_folder);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f));
	assert_non_null(strstr(line, "map-offset "));
	assert_non_null(strstr(line, " cuMemMap with offset 2097152\n"));
	assert_null(fgets(line, sizeof(line), f));
	fclose(f);
}

static void nothing_is_left(void **state)
{
	uint32_t n = 1;

	(void)state;
	assert_int_equal(cudadrv_segments(machine, &n), 0);
	assert_int_equal(n, 0);
}

static int setup(void **state)
{
	const struct cudadrv_config c = { .devices = 2, .vram_bytes = 512 * MIB, .linger_ns = 1 };

	(void)state;
	return machine_setup(&c);
}

static int teardown(void **state)
{
	(void)state;
	machine_teardown();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_report_has_a_misuse),
		cmocka_unit_test(every_misuse_is_reported),
		cmocka_unit_test(every_twin_passes),
		cmocka_unit_test(every_question_is_answered),
		cmocka_unit_test(reports_are_lines),
		cmocka_unit_test(nothing_is_left),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
