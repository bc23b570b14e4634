/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of kvbench, one file each. They get argv from their own name on and return an
 * exit status: 0 measured, 1 could not be measured, 2 usage, 3 a goal that was to be checked is missed.
 */
#ifndef KVBENCH_KVBENCH_H
#define KVBENCH_KVBENCH_H

int kvbench_attention(int argc, char **argv);
int kvbench_background(int argc, char **argv);
int kvbench_calibrate(int argc, char **argv);
int kvbench_codecs(int argc, char **argv);
int kvbench_device(int argc, char **argv);
int kvbench_estimate(int argc, char **argv);
int kvbench_fairness(int argc, char **argv);
int kvbench_hotpath(int argc, char **argv);
int kvbench_lossless(int argc, char **argv);
int kvbench_policy(int argc, char **argv);
int kvbench_precision(int argc, char **argv);
int kvbench_put(int argc, char **argv);
int kvbench_quality(int argc, char **argv);
int kvbench_restore(int argc, char **argv);
int kvbench_scale(int argc, char **argv);
int kvbench_suite(int argc, char **argv);
int kvbench_versus(int argc, char **argv);
int kvbench_warm(int argc, char **argv);

#endif
