/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvreplay/kvreplay.h"

int cmd_generate(int argc, char **argv)
{
	(void)argc, (void)argv;
	return 2;
}
