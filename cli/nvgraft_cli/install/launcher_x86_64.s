# The hooks' static launcher for x86-64; launcher.py says why it is there, and assembles it.
# On the stack: argc, argv[0], ..., NULL, envp[0], ..., NULL. Nothing else of the caller's is read.

_start:
    mov (%rsp), %rdi
    test %rdi, %rdi
    jz fail                     # no argv[0], so there is no room for one
    lea 16(%rsp,%rdi,8), %rdx   # envp
    mov %rdx, %rsi              # read here ...
    mov %rdx, %rbx              # ... and write what is kept here
variable:
    mov (%rsi), %rax
    add $8, %rsi
    test %rax, %rax
    jz start
    mov names(%rip), %r8
name:
    cmpb $0, (%r8)
    je variable                 # none of the names
    mov %rax, %r9
compare:
    mov (%r8), %cl
    inc %r8
    test %cl, %cl
    jz keep                     # the whole name, with its =
    mov (%r9), %dil
    inc %r9
    cmp %cl, %dil
    je compare
skip:
    mov (%r8), %cl
    inc %r8
    test %cl, %cl
    jnz skip
    jmp name
keep:
    mov %rax, (%rbx)
    add $8, %rbx
    jmp variable
start:
    movq $0, (%rbx)
    mov script(%rip), %rax      # argv: the interpreter, its options, the script, and the caller's own without argv[0]
    mov %rax, 8(%rsp)
    lea options(%rip), %rax
    mov %rax, (%rsp)
    mov interpreter(%rip), %rdi
    lea -8(%rsp), %rsi
    mov %rdi, (%rsi)
    mov $59, %eax               # execve
    syscall
fail:
    mov length(%rip), %rdx
    mov message(%rip), %rsi
    mov $2, %edi
    mov $1, %eax                # write
    syscall
    mov $127, %edi
    mov $60, %eax               # exit
    syscall
options:
    .asciz "-ISB"
    .balign 8, 0
# Five words follow, which launcher.py writes for one installation, and then the texts that they point to.
interpreter = .
script = . + 8
message = . + 16
length = . + 24
names = . + 32
