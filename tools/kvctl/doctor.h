/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of kvctl doctor share. */
#ifndef KVCTL_DOCTOR_H
#define KVCTL_DOCTOR_H

#include <stdbool.h>
#include <sys/types.h>

#include "tools/kvctl/kvctl.h"

enum finding { GOOD, NOTE, PROBLEM };

struct doctor {
	json_t *findings;
	unsigned problems;
	json_t *status;  /* the daemon's, or NULL */
	json_t *devices; /* likewise */
	pid_t pid;       /* of the daemon; 0: none */
	uid_t uid;
	bool uid_known;
};

__attribute__((format(printf, 4, 5))) void kvctl_say(
	struct doctor *d, enum finding f, const char *topic, const char *format, ...);
bool kvctl_read_line(const char *path, char *line, size_t bytes);

/* doctor_gpu.c */
void kvctl_doctor_gpus(struct doctor *d);

#endif
