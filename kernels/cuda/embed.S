/* SPDX-License-Identifier: Apache-2.0 */
/* A fatbin that nvcc made, KVP_FATBIN, as read-only data named KVP_IMAGE and KVP_IMAGE_END; image.c has their names. */
	.section .rodata
	.balign 64
	.globl KVP_IMAGE
	.hidden KVP_IMAGE
KVP_IMAGE:
	.incbin KVP_FATBIN
	.globl KVP_IMAGE_END
	.hidden KVP_IMAGE_END
KVP_IMAGE_END:
	.byte 0
	.section .note.GNU-stack, "", %progbits
