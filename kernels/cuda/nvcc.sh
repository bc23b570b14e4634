#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc.sh USAGE COMMAND...	runs nvcc and keeps in the file USAGE what ptxas says of registers,
#				stack and spills, which tests/gpu/resources.py reads
set -eu
usage=$1
shift
if ! "$@" -Xptxas -v 2>"$usage"; then
	cat "$usage" >&2
	exit 1
fi
grep -i warning "$usage" >&2 || true
