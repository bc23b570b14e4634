/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RECIPE blocks: those whose payload is gone and whose token ids are not. The childless ones are
 * listed in order of age; they are forgotten from the oldest on.
 */
#ifndef KVPD_RECIPE_H
#define KVPD_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_tenant;

/* Enters a childless RECIPE block, as the oldest or the youngest. */
void kvpd_recipe_list(struct kvpd_tenant *t, uint32_t block, bool old);
void kvpd_recipe_unlist(struct kvpd_tenant *t, uint32_t block);
/* Counts of the tenant and the catalog. */
void kvpd_recipe_count(struct kvpd_tenant *t, int more);
/* Forgets a RECIPE block. -ENOTEMPTY: it has children. */
int kvpd_recipe_forget(struct kvpd_tenant *t, uint32_t block);
/* Forgets the oldest recipe that may go; false: there is none. */
bool kvpd_recipe_forget_oldest(struct kvpd_tenant *t);
/* Forgets what is beyond the limit, a portion now and the rest as a chore. */
void kvpd_recipe_trim(struct kvpd_tenant *t);

#endif
