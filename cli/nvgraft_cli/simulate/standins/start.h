/* The first code of a program, in place of crt1.o, which names a version of __libc_start_main that glibc before 2.34 lacks. Both old and
 * new versions of glibc take no constructor (NULL) from the program here, and run those of its libraries. */
#if defined(__x86_64__)
__asm__(
  ".text\n.globl _start\n.type _start,@function\n_start:\n"
  "xor %ebp, %ebp\nmov %rdx, %r9\npop %rsi\nmov %rsp, %rdx\nand $-16, %rsp\npush %rax\npush %rsp\n"
  "xor %r8d, %r8d\nxor %ecx, %ecx\nlea main(%rip), %rdi\ncall *__libc_start_main@GOTPCREL(%rip)\nhlt\n");
#elif defined(__aarch64__)
__asm__(
  ".text\n.globl _start\n.type _start,%function\n_start:\n"
  "mov x29, #0\nmov x30, #0\nmov x5, x0\nldr x1, [sp]\nadd x2, sp, #8\nmov x6, sp\n"
  "adrp x0, main\nadd x0, x0, :lo12:main\nmov x3, #0\nmov x4, #0\nbl __libc_start_main\nbrk #0\n");
#endif
