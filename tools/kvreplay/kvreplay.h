/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of kvreplay. Each gets argv from its own name on and returns an exit status. */
#ifndef KVREPLAY_KVREPLAY_H
#define KVREPLAY_KVREPLAY_H

int cmd_run(int argc, char **argv);
int cmd_simulate(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_graph(int argc, char **argv);
int cmd_thresholds(int argc, char **argv);

#endif
