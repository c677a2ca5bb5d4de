/* Every function of talloc that makes, moves, names or ends chunks, called a few times each.
 *
 * The library is opened by name and used as it is. There is no truth but this: all of them are called. What they count
 * up to is proven on programs of Samba's (`real_talloc.rs`).
 */
#include "truth.h"

#include <dlfcn.h>
#include <stdarg.h>

/* Results are not needed but where something is done to them, so they are all alike. */
typedef void *call(void *, ...);

static void *library;

static void *found(const char *name) {
    void *at = dlsym(library, name);
    if (!at) {
        fprintf(stderr, "talloc_calls: there is no %s\n", name);
        _exit(9);
    }
    return at;
}

static call *function(const char *name) {
    call *called;
    *(void **)&called = found(name);
    return called;
}

static void *printed(void *context, const char *format, ...) {
    void *(*print)(void *, const char *, va_list);
    *(void **)&print = found("talloc_vasprintf");
    va_list arguments;
    va_start(arguments, format);
    void *text = print(context, format, arguments);
    va_end(arguments);
    return text;
}

static void *made(void *chunk) {
    if (!chunk) abort();
    return chunk;
}

static void round_of_calls(int n) {
    size_t small = 10, large = 100000;
    void *root = made(function("talloc_init")("root %d", n));
    void *named = made(function("talloc_named_const")(root, small, "named"));
    made(function("talloc_named")(root, small, "named %d", n));
    made(function("_talloc")(root, small));
    made(function("_talloc_zero")(named, small, "zero"));
    void *array = made(function("_talloc_array")(named, small, 5u, "array"));
    array = made(function("_talloc_realloc")(named, array, large, "array"));
    made(function("_talloc_memdup")(named, "text", (size_t)5, "copy"));
    made(function("talloc_strdup")(named, "text"));
    made(function("talloc_strndup")(named, "text", (size_t)2));
    made(printed(named, "text %d", n));
    void *pool = made(function("talloc_pool")(root, large));
    made(function("_talloc_zero")(pool, small, "in a pool"));
    made(function("_talloc_pooled_object")(root, small, "pooled", 2u, large));
    function("talloc_set_name_const")(named, "another name");
    made(function("_talloc_steal_loc")(pool, named, "here"));
    made(function("talloc_reparent")(pool, root, named));
    function("talloc_unlink")(root, made(function("_talloc")(root, small)));
    function("talloc_free_children")(named);
    function("_talloc_free")(root, "here");
}

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    library = dlopen("libtalloc.so.2", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "talloc_calls: %s\n", dlerror());
        _exit(9);
    }
    ready();
    for (int n = 0; n < 5; n++) round_of_calls(n);
    return 0;
}
