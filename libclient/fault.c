/* SPDX-License-Identifier: Apache-2.0 */
/* Fault points of the library's test variant: where KVP_FAULT in the environment says, it stops. */
#include "libclient/client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan {
	char name[32];
	unsigned count;
	int signal;
};

static struct plan plan;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static KVP_ATOMIC(uint32_t) passed;

static void read_plan(void)
{
	const char *text = getenv("KVP_FAULT");
	char how[8] = "";

	plan.count = 1;
	plan.signal = SIGKILL;
	if (!text || sscanf(text, "%31[^:]:%u:%7s", plan.name, &plan.count, how) >= 2)
		;
	else
		(void)sscanf(text, "%31[^:]:%7s", plan.name, how);
	if (!strcmp(how, "stop"))
		plan.signal = SIGSTOP;
}

void fault_point(const char *name)
{
	pthread_once(&once, read_plan);
	if (!strcmp(plan.name, name) && kvp_add_relaxed(&passed, 1) + 1 == plan.count)
		raise(plan.signal);
}
