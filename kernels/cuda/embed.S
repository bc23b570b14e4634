/* SPDX-License-Identifier: Apache-2.0 */
/* The fatbins that nvcc made, as read-only data; image.c names them. */
	.macro image name, file
	.balign 64
	.globl \name
	.hidden \name
\name:
	.incbin "\file"
	.globl \name\()_end
	.hidden \name\()_end
\name\()_end:
	.byte 0
	.endm

	.section .rodata
	image kvp_cuda_image_codec, KVP_FATBIN_CODEC
	image kvp_cuda_image_attend, KVP_FATBIN_ATTEND
	image kvp_cuda_image_attend_any, KVP_FATBIN_ATTEND_ANY
	image kvp_cuda_image_layout, KVP_FATBIN_LAYOUT
	.section .note.GNU-stack, "", %progbits
