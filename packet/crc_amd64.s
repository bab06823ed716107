#include "textflag.h"

// FOLD folds the register x by the distance of the factors k: x becomes what has to be added there.
#define FOLD(k, x, tmp) \
	VPCLMULQDQ $0x00, k, x, tmp \
	VPCLMULQDQ $0x11, k, x, x   \
	VPXOR      tmp, x, x

// func fold(c uint32, p *byte, n int, k *foldConstants) uint32
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL  c+0(FP), AX
	MOVQ  p+8(FP), SI
	MOVQ  n+16(FP), CX
	MOVQ  k+24(FP), DI

	VMOVD          AX, X0
	VPXOR          (SI), Y0, Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	ADDQ           $128, SI
	SUBQ           $128, CX
	VBROADCASTI128 (DI), Y8     // by1024
	CMPQ           CX, $128
	JB             join

loop:
	VPCLMULQDQ $0x00, Y8, Y0, Y4
	VPCLMULQDQ $0x00, Y8, Y1, Y5
	VPCLMULQDQ $0x00, Y8, Y2, Y6
	VPCLMULQDQ $0x00, Y8, Y3, Y7
	VPCLMULQDQ $0x11, Y8, Y0, Y0
	VPCLMULQDQ $0x11, Y8, Y1, Y1
	VPCLMULQDQ $0x11, Y8, Y2, Y2
	VPCLMULQDQ $0x11, Y8, Y3, Y3
	VPXOR      (SI), Y4, Y4
	VPXOR      32(SI), Y5, Y5
	VPXOR      64(SI), Y6, Y6
	VPXOR      96(SI), Y7, Y7
	VPXOR      Y4, Y0, Y0
	VPXOR      Y5, Y1, Y1
	VPXOR      Y6, Y2, Y2
	VPXOR      Y7, Y3, Y3
	ADDQ       $128, SI
	SUBQ       $128, CX
	CMPQ       CX, $128
	JAE        loop

join: // 128 bytes to 32, then to 16
	VBROADCASTI128 16(DI), Y8   // by768
	VBROADCASTI128 32(DI), Y9   // by512
	VBROADCASTI128 48(DI), Y10  // by256
	FOLD(Y8, Y0, Y4)
	FOLD(Y9, Y1, Y5)
	FOLD(Y10, Y2, Y6)
	VPXOR          Y1, Y0, Y0
	VPXOR          Y3, Y2, Y2
	VPXOR          Y2, Y0, Y0
	VMOVDQU        64(DI), X8   // by128
	VEXTRACTI128   $1, Y0, X1
	FOLD(X8, X0, X4)
	VPXOR          X1, X0, X0

next: // the remaining groups of 16 bytes
	CMPQ  CX, $16
	JB    reduce
	FOLD(X8, X0, X4)
	VPXOR (SI), X0, X0
	ADDQ  $16, SI
	SUBQ  $16, CX
	JMP   next

reduce: // 16 bytes, with the 32 zero bits that follow a message, to 12, to 8, to the register
	VMOVDQU    80(DI), X9          // by64, mask
	VPSRLDQ    $8, X9, X10         // mask
	VPSRLDQ    $8, X0, X1
	VPCLMULQDQ $0x10, X8, X0, X0   // the second factor of by128
	VPXOR      X1, X0, X0
	VPSRLDQ    $4, X0, X1
	VPAND      X10, X0, X0
	VPCLMULQDQ $0x00, X9, X0, X0
	VPXOR      X1, X0, X0
	VMOVDQU    96(DI), X9          // last
	VPAND      X10, X0, X1
	VPCLMULQDQ $0x00, X9, X1, X1
	VPAND      X10, X1, X1
	VPCLMULQDQ $0x10, X9, X1, X1
	VPXOR      X1, X0, X0
	VPEXTRD    $1, X0, AX
	VZEROUPPER
	MOVL       AX, ret+32(FP)
	RET

// func hasVPCLMULQDQ() bool
TEXT ·hasVPCLMULQDQ(SB), NOSPLIT, $0-1
	MOVL  $7, AX
	XORL  CX, CX
	CPUID
	BTL   $10, CX
	SETCS ret+0(FP)
	RET
