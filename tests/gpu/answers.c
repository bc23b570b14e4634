/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this machine's driver answers otherwise than the simulated one: every misuse of tests/cudadrv with its corrected
 * twin, and what is asked of a driver besides, each in a process of its own. A line for each difference, and how many
 * there are. What a difference means is for people to say: the simulated driver is stricter on purpose in places.
 *
 *	gpu_answers [--same]	--same: differences are failures
 *
 * Exit status: 0, 1 a difference with --same, 77 there is no GPU.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudadrv/child.h"
#include "tests/cudadrv/misuses.h"

static uint32_t n_asked, n_otherwise, n_lacking;

static void present(void)
{
	child_open();
}

/* A case of several processes may have several lines: the first is where it began to differ. */
static void tell(int status)
{
	char line[300];
	ssize_t n = pread(child_answers, line, sizeof(line) - 1, 0);

	line[n > 0 ? n : 0] = 0;
	line[strcspn(line, "\n")] = 0;
	if (!*line && WIFSIGNALED(status))
		snprintf(line, sizeof(line), "%s: %s", child_case,
			WTERMSIG(status) == SIGALRM ? "does not end" : strsignal(WTERMSIG(status)));
	else if (!*line)
		snprintf(line, sizeof(line), "%s: ends with status %d", child_case,
			WEXITSTATUS(status));
	puts(line);
}

static void ask(const char *kind, const char *name, void (*work)(void))
{
	char text[100];
	int status;

	snprintf(text, sizeof(text), "%s%s", name, kind);
	child_case = text;
	if (ftruncate(child_answers, 0) < 0 || lseek(child_answers, 0, SEEK_SET) < 0)
		exit(2);
	fflush(stdout);
	status = child_run(work);
	n_asked++;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_LACKS) {
		n_lacking++;
		return;
	}
	n_otherwise++;
	tell(status);
}

static bool asked_before(uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (misuses[k].right == misuses[i].right)
			return true;
	return false;
}

int main(int argc, char **argv)
{
	const bool same = argc == 2 && !strcmp(argv[1], "--same");
	const char *folder = getenv("KVP_SIM_GPU");
	int status;

	if (folder && cudadrv_open(folder, &machine) == 0)
		snprintf(machine_folder, sizeof(machine_folder), "%s", folder);
	status = child_run(present);
	if (status != 0) {
		printf("there is no GPU here that CUDA can use\n");
		return 77;
	}
	child_answers = memfd_create("answers", MFD_CLOEXEC);
	if (child_answers < 0)
		return 2;
	for (uint32_t i = 0; i < n_questions; i++)
		ask("", questions[i].name, questions[i].ask);
	for (uint32_t i = 0; i < n_misuses; i++) {
		ask(", wrong", misuses[i].name, misuses[i].wrong);
		if (!asked_before(i))
			ask(", right", misuses[i].name, misuses[i].right);
	}
	printf("answers: %u cases, %u answered otherwise than by the simulated driver, %u not "
	       "asked\n",
		n_asked, n_otherwise, n_lacking);
	return same && n_otherwise;
}
