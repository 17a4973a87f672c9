// A made-up libcublasLt.so.13: it computes nothing, counts what is made, and ends the process where it is used wrongly.

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "made-up libcublasLt: %s: %s\n", __func__, #condition); \
            abort(); \
        } \
    } while (0)

typedef struct Object {
    enum { HANDLE, PRODUCT, LAYOUT, PREFERENCE } kind;
    int type;
    uint64_t rows, columns;
    int transposed;
} Object;

// cublasLtMatmulHeuristicResult_t.
typedef struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Heuristic;

static int live, plans, products, added, fail_at;

int fake_lt_live(void) { return live; }
int fake_lt_plans(void) { return plans; }
int fake_lt_products(void) { return products; }
int fake_lt_added(void) { return added; }
// The n-th call from now fails; 0: none.
void fake_lt_fail(int n) { fail_at = n; }

static int fails(void) { return fail_at > 0 && --fail_at == 0; }

static int make(Object** out, Object object) {
    if (fails()) return 3;  // CUBLAS_STATUS_ALLOC_FAILED
    *out = malloc(sizeof **out);
    **out = object;
    ++live;
    return 0;
}

static int destroy(Object* object, int kind) {
    CHECK(object != NULL && (int)object->kind == kind);
    object->kind = -1;
    --live;
    free(object);
    return 0;
}

int cublasLtCreate(Object** out) { return make(out, (Object){.kind = HANDLE}); }
int cublasLtDestroy(Object* handle) { return destroy(handle, HANDLE); }

int cublasLtMatmulDescCreate(Object** out, int compute, int scale) {
    CHECK(compute == 68 && scale == 0);
    return make(out, (Object){.kind = PRODUCT});
}
int cublasLtMatmulDescSetAttribute(Object* product, int attribute, const void* value, size_t bytes) {
    CHECK(product->kind == PRODUCT && attribute == 3 && bytes == sizeof(int) && *(const int*)value == 1);
    product->transposed = 1;
    return 0;
}
int cublasLtMatmulDescDestroy(Object* product) { return destroy(product, PRODUCT); }

int cublasLtMatrixLayoutCreate(Object** out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    CHECK(stride == (int64_t)rows && (type == 14 || type == 0));
    return make(out, (Object){.kind = LAYOUT, .type = type, .rows = rows, .columns = columns});
}
int cublasLtMatrixLayoutDestroy(Object* layout) { return destroy(layout, LAYOUT); }

int cublasLtMatmulPreferenceCreate(Object** out) { return make(out, (Object){.kind = PREFERENCE}); }
int cublasLtMatmulPreferenceSetAttribute(Object* preference, int attribute, const void* value, size_t bytes) {
    CHECK(preference->kind == PREFERENCE && attribute == 1 && bytes == 8 && *(const uint64_t*)value > 0);
    return 0;
}
int cublasLtMatmulPreferenceDestroy(Object* preference) { return destroy(preference, PREFERENCE); }

// Column-major: y [n, m] = w [k, n], transposed, times x [k, m].
static void check_shapes(Object* product, Object* w, Object* x, Object* y, Object* out) {
    CHECK(product->kind == PRODUCT && product->transposed);
    CHECK(w->kind == LAYOUT && x->kind == LAYOUT && y->kind == LAYOUT && y == out);
    CHECK(w->type == 14 && x->type == 14 && y->type == 0);
    CHECK(w->rows == x->rows && w->columns == y->rows && x->columns == y->columns);
}

int cublasLtMatmulAlgoGetHeuristic(
    Object* handle, Object* product, Object* w, Object* x, Object* y, Object* out, Object* preference, int wanted,
    Heuristic* found, int* count) {
    CHECK(handle->kind == HANDLE && preference->kind == PREFERENCE && wanted == 1);
    check_shapes(product, w, x, y, out);
    if (fails()) return 15;  // CUBLAS_STATUS_NOT_SUPPORTED
    *found = (Heuristic){.algorithm = {w->columns, x->columns, w->rows}};
    *count = 1;
    ++plans;
    return 0;
}

int cublasLtMatmul(
    Object* handle, Object* product, const float* one, const void* w_at, Object* w, const void* x_at, Object* x,
    const float* kept, const void* y_in, Object* y, void* y_out, Object* out, const uint64_t* algorithm, void* workspace,
    size_t workspace_bytes, void* stream) {
    CHECK(handle->kind == HANDLE && *one == 1.0f && (*kept == 0.0f || *kept == 1.0f));
    check_shapes(product, w, x, y, out);
    CHECK(algorithm[0] == w->columns && algorithm[1] == x->columns && algorithm[2] == w->rows);
    CHECK(w_at && x_at && y_in == y_out && y_out && workspace && workspace_bytes > 0 && stream);
    if (fails()) return 13;  // CUBLAS_STATUS_EXECUTION_FAILED
    ++products;
    added += *kept == 1.0f;
    return 0;
}
