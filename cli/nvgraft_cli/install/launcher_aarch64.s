// The hooks' static launcher for aarch64; launcher.py says why it is there, and assembles it.
// On the stack: argc, argv[0], ..., NULL, envp[0], ..., NULL. Nothing else of the caller's is read.

_start:
    ldr x0, [sp]
    cbz x0, fail                // no argv[0], so there is no room for one
    add x1, sp, #16
    add x2, x1, x0, lsl #3      // envp
    mov x3, x2                  // read here ...
    mov x4, x2                  // ... and write what is kept here
variable:
    ldr x5, [x3], #8
    cbz x5, start
    ldr x6, names
name:
    ldrb w7, [x6]
    cbz w7, variable            // none of the names
    mov x9, x5
compare:
    ldrb w7, [x6], #1
    cbz w7, keep                // the whole name, with its =
    ldrb w10, [x9], #1
    cmp w7, w10
    b.eq compare
skip:
    ldrb w7, [x6], #1
    cbnz w7, skip
    b name
keep:
    str x5, [x4], #8
    b variable
start:
    str xzr, [x4]
    ldr x5, script              // argv: the interpreter, its options, the script, and the caller's own without argv[0]
    str x5, [sp, #8]
    adr x5, options
    str x5, [sp]
    ldr x0, interpreter
    sub x1, sp, #8
    str x0, [x1]
    mov x8, #221                // execve
    svc #0
fail:
    ldr x2, length
    ldr x1, message
    mov x0, #2
    mov x8, #64                 // write
    svc #0
    mov x0, #127
    mov x8, #93                 // exit
    svc #0
options:
    .asciz "-ISB"
    .balign 8, 0
// Five words follow, which launcher.py writes for one installation, and then the texts that they point to.
interpreter = .
script = . + 8
message = . + 16
length = . + 24
names = . + 32
