/*
 * The fake's modules and kernels. What a module's image holds is not looked
 * at: functions are those that the test has added by name.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/internal.h"

struct CUmod_st {
    struct CUmod_st *next;
    struct CUctx_st *context;
    struct CUfunc_st *functions;
};

struct CUfunc_st {
    struct CUfunc_st *next;
    struct CUmod_st *module;
    struct kernel *kernel;
    int dynamic_shared;
};

static struct kernel *kernels; /* never freed: work may hold them */
static struct CUmod_st *modules;

EXPORT void fake_cuda_add_kernel(const char *name, fake_cuda_kernel *code, unsigned count, const size_t *sizes)
{
    struct kernel *k = calloc(1, sizeof *k);
    if (!k || count > 16)
        abort();
    k->name = strdup(name);
    k->code = code;
    k->count = count;
    for (unsigned i = 0; i < count; i++) {
        k->sizes[i] = sizes[i];
        k->parameter_bytes += (sizes[i] + 15) / 16 * 16;
    }
    pthread_mutex_lock(&fake_lock);
    k->next = kernels;
    kernels = k;
    pthread_mutex_unlock(&fake_lock);
}

size_t fake_module_count(void)
{
    size_t count = 0;
    for (const struct CUmod_st *m = modules; m; m = m->next)
        count++;
    return count;
}

static struct CUmod_st *module_of(CUmodule handle)
{
    for (struct CUmod_st *m = modules; m; m = m->next)
        if (m == handle)
            return m;
    return NULL;
}

static struct CUfunc_st *function_of(CUfunction handle)
{
    for (struct CUmod_st *m = modules; m; m = m->next)
        for (struct CUfunc_st *f = m->functions; f; f = f->next)
            if (f == handle)
                return f;
    return NULL;
}

static void module_free(struct CUmod_st *module)
{
    struct CUmod_st **p = &modules;
    while (*p != module)
        p = &(*p)->next;
    *p = module->next;
    while (module->functions) {
        struct CUfunc_st *f = module->functions;
        module->functions = f->next;
        free(f);
    }
    free(module);
}

void fake_modules_of_context_free(struct CUctx_st *context)
{
    for (struct CUmod_st *m = modules, *next; m; m = next) {
        next = m->next;
        if (m->context == context)
            module_free(m);
    }
}

/* Loading code waits for the device, which a stream that waits for us would never let be idle. */
EXPORT cuda_result_t cuModuleLoadData(CUmodule *module, const void *image)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    if (!module || !image)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    result = fake_wait_context(fake_context());
    struct CUmod_st *m = result ? NULL : calloc(1, sizeof *m);
    if (!m)
        return fake_leave(result ? result : CUDA_IS_OUT_OF_MEMORY);
    m->context = fake_context();
    m->next = modules;
    modules = m;
    *module = m;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuModuleUnload(CUmodule module)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    struct CUmod_st *m = module_of(module);
    if (!m)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    result = fake_wait_context(m->context);
    m = module_of(module);
    if (result || !m)
        return fake_leave(result ? result : CUDA_IS_INVALID_HANDLE);
    module_free(m);
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUmod_st *m = module_of(module);
    if (!m)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    struct kernel *k = kernels;
    while (k && strcmp(k->name, name) != 0)
        k = k->next;
    if (!k)
        return fake_leave(CUDA_IS_NOT_FOUND);
    struct CUfunc_st *f = m->functions;
    while (f && f->kernel != k)
        f = f->next;
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f)
            return fake_leave(CUDA_IS_OUT_OF_MEMORY);
        f->module = m;
        f->kernel = k;
        f->next = m->functions;
        m->functions = f;
    }
    *function = f;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuFuncGetAttribute(int *value, unsigned attribute, CUfunction function)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct CUfunc_st *f = function_of(function);
    if (!f)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    switch (attribute) {
    case CUDA_FUNC_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CUDA_FUNC_NUM_REGS: *value = 32; break;
    case CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->dynamic_shared ? f->dynamic_shared : 48 << 10; break;
    default: *value = 0; break;
    }
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuFuncSetAttribute(CUfunction function, unsigned attribute, int value)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUfunc_st *f = function_of(function);
    if (!f)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    if (attribute != CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > 227 << 10)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    f->dynamic_shared = value;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_threads,
                                                                 size_t shared_bytes)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    if (!function_of(function))
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    if (block_threads < 1 || block_threads > 1024)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const int by_shared = shared_bytes ? (int)((228u << 10) / shared_bytes) : 32;
    *blocks = 2048 / block_threads < by_shared ? 2048 / block_threads : by_shared;
    return fake_leave(CUDA_IS_OK);
}

static struct op *kernel_op(const struct CUfunc_st *f, void **parameters)
{
    struct op *op = calloc(1, sizeof *op);
    unsigned char *bytes = malloc(f->kernel->parameter_bytes + 1);
    if (!op || !bytes) {
        free(op);
        free(bytes);
        return NULL;
    }
    op->kind = OP_KERNEL;
    op->kernel = f->kernel;
    op->parameters = bytes;
    for (unsigned i = 0; i < f->kernel->count; i++) { /* as they are now, not when the kernel runs */
        memcpy(bytes, parameters[i], f->kernel->sizes[i]);
        bytes += (f->kernel->sizes[i] + 15) / 16 * 16;
    }
    return op;
}

EXPORT cuda_result_t cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                    CUstream stream, void **parameters, void **extra)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct CUfunc_st *f = function_of(function);
    struct CUstream_st *s = fake_stream(stream);
    if (!f || !s || f->module->context != s->context)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    const uint64_t threads = (uint64_t)block_x * block_y * block_z;
    const unsigned shared_limit = f->dynamic_shared ? (unsigned)f->dynamic_shared : 48u << 10;
    if (!grid_x || !grid_y || !grid_z || !threads || threads > 1024 || shared_bytes > shared_limit || extra ||
        (f->kernel->count && !parameters))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    struct op *op = kernel_op(f, parameters);
    if (op)
        op->launch = (struct fake_cuda_launch){{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return fake_leave(fake_submit(s, op));
}
