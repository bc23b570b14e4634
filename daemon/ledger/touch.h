/* SPDX-License-Identifier: Apache-2.0 */
/* Recency: what clients have matched, as their touch logs tell, goes to the policy. */
#ifndef KVPD_TOUCH_H
#define KVPD_TOUCH_H

#include <stdint.h>

struct kvpd_session;

#define KVPD_TOUCH_BLOCKS 8192u  /* of chains in the logs of one session, in one round */
#define KVPD_TOUCH_DEPTH  65536u /* recency of a longer chain is not kept */

/* Empties the session's logs, as far as KVPD_TOUCH_BLOCKS goes. */
void kvpd_touch_apply(struct kvpd_session *s, uint64_t now);

#endif
